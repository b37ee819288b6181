"""The datasets about health: fetal monitoring, life expectancy, breast cancer."""

from __future__ import annotations

import pandas as pd

from veritracer.datasets.parts import Parts, plain_features
from veritracer.schema import Schema
from veritracer.schema.feature import Feature

SHIFT_YEAR = 2012

_CTG_CLASSES = {1: "normal", 2: "suspect", 3: "pathological"}
_CTG_STEPS = {
    **dict.fromkeys(
        ("accelerations", "fetal_movement", "uterine_contractions", "light_decelerations"), 0.001
    ),
    **dict.fromkeys(("severe_decelerations", "prolongued_decelerations"), 0.001),
    **dict.fromkeys(("mean_value_of_short_term_variability", "mean_value_of_long_term_variability"), 0.1),
}
_CTG_TEXT = (
    "Measurements of a fetus: nothing here is a person's to change, so every feature is free and a "
    "counterfactual only explains. "
    "Some columns are tied (histogram width is maximum minus minimum; mode, mean and median "
    "move together). The label suspect includes pathological; groups has the three classes apart."
)


def ctg(raw: pd.DataFrame, paper: bool) -> Parts:
    """The 2,126 recordings, normal against suspect or pathological."""
    X = raw.drop(columns="fetal_health")
    groups = raw["fetal_health"].map(_CTG_CLASSES).rename("group")
    y = groups.replace("pathological", "suspect").rename("fetal_health")
    features = plain_features(X) if paper else [_ctg_feature(X[name]) for name in X.columns]
    return Parts(X, y, Schema(features, "fetal_health", "normal", "suspect"), _CTG_TEXT, groups)


def _ctg_feature(column: pd.Series[float]) -> Feature:
    name = str(column.name)
    if name == "histogram_tendency":
        note = "-1 left asymmetric, 0 symmetric, 1 right asymmetric"
        return Feature(name, "ordinal", categories=(-1, 0, 1), note=note)
    if name in _CTG_STEPS:
        return Feature(name, "continuous", step=_CTG_STEPS[name])
    return Feature(name, "integer")


_WHO_OUTCOMES = ("Adult Mortality", "infant deaths", "under-five deaths", "HIV/AIDS")
_WHO_NOTES = {
    **dict.fromkeys(_WHO_OUTCOMES, "itself an outcome of mortality"),
    **dict.fromkeys(("GDP", "Population"), "hardly a lever"),
}
_WHO_WHOLE = (
    "Adult Mortality",
    "infant deaths",
    "Hepatitis B",
    "Measles",
    "under-five deaths",
    "Polio",
    "Diphtheria",
)
_WHO_TEXT = (
    "One row for each country and year, without the ten that have no life expectancy; above or below the "
    "median of the years before 2012. "
    "What may change is a matter of policy. Rows of one country are much alike: a "
    "random split puts the same country on both sides. groups has the year."
)


def who(raw: pd.DataFrame, paper: bool) -> Parts:
    """The 2,928 country-years; the paper's variant fills gaps with the medians of the years before 2012."""
    target = "Life expectancy"
    table = raw[raw[target].notna()]
    before = table["Year"] < SHIFT_YEAR
    median = table.loc[before, target].median()
    y = table[target].gt(median).map({True: "above", False: "below"}).rename(target)
    X = table.drop(columns=["Country", "Year", "Status", target])
    if paper:
        # NOTE[paper]: the authors imputed somehow and do not say how; these medians keep their row counts.
        X = X.fillna(X[before].median())
    features = plain_features(X) if paper else [_who_feature(X[name]) for name in X.columns]
    return Parts(X, y, Schema(features, target, "above", "below"), _WHO_TEXT, table["Year"])


def _who_feature(column: pd.Series[float]) -> Feature:
    name = str(column.name)
    return Feature(
        name,
        "integer" if name in _WHO_WHOLE else "continuous",
        missing="impute" if column.isna().any() else "refuse",
        action="immutable" if name in _WHO_NOTES else "free",
        note=_WHO_NOTES.get(name, ""),
    )


def breast_cancer() -> Parts:
    """Scikit-learn's bundled table of 569 tumours; benign is favourable."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    y = bunch.target.map({0: "malignant", 1: "benign"}).rename("diagnosis")
    features = [Feature(name, "continuous") for name in bunch.data.columns]
    schema = Schema(features, "diagnosis", "benign", "malignant")
    text = (
        "Measurements of cell nuclei: nothing here is a person's to change; a counterfactual only explains."
    )
    return Parts(bunch.data, y, schema, text)

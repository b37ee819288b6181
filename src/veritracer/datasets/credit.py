"""The two credit datasets: FICO's home equity lines and the Taiwanese credit cards."""

from __future__ import annotations

import pandas as pd

from veritracer.datasets.parts import Parts, actions, plain_features
from veritracer.schema import Schema
from veritracer.schema.feature import Feature, Kind

_SPECIAL = (-7, -8, -9)

_HELOC_ACTIONS = actions(
    {
        "immutable": [
            "ExternalRiskEstimate",
            "NumTrades60Ever2DerogPubRec",
            "NumTrades90Ever2DerogPubRec",
            "MaxDelq2PublicRecLast12M",
            "MaxDelqEver",
            "PercentTradesNeverDelq",
            "NumTotalTrades",
        ],
        "increase_only": [
            "MSinceOldestTradeOpen",
            "AverageMInFile",
            "MSinceMostRecentTradeOpen",
            "MSinceMostRecentDelq",
            "MSinceMostRecentInqexcl7days",
            "NumSatisfactoryTrades",
        ],
    }
)
_HELOC_NOTES = {
    "ExternalRiskEstimate": "a third party's score",
    "MaxDelq2PublicRecLast12M": "nearly ordered: 0 derogatory, 1 to 4 from 120+ to 30 days, 7 never, 9 other",
    "MaxDelqEver": "nearly ordered: 2 derogatory, 3 to 6 from 120+ to 30 days, 7 unknown, 8 never",
    "NumSatisfactoryTrades": "grows with time and good conduct",
}
# Percentages of a person's trades: no person can have more than all of them.
_HELOC_PERCENT = ("PercentTradesNeverDelq", "PercentInstallTrades", "PercentTradesWBalance")
_HELOC_TEXT = (
    "Credit reports; Bad means 90 or more days past due within 24 months. The 588 rows without any record "
    "(-9 in every column) are left out. -7: condition not met, -8: no usable trades, -9: no record."
)


def heloc(raw: pd.DataFrame, paper: bool) -> Parts:
    """HELOC without its 588 empty rows; the paper's variant fills special values with the column's median."""
    table = raw[~(raw.drop(columns="RiskPerformance") == -9).all(axis=1)]
    X, y = table.drop(columns="RiskPerformance"), table["RiskPerformance"]
    if paper:
        valid = X.where(X >= 0)
        X = valid.fillna(valid.median())
        # NOTE[paper]: the authors z-score every column next; min-max scaling follows, so that has no effect.
        text = (
            f"{_HELOC_TEXT} Special values are replaced by the median of the valid ones, as the authors did."
        )
        return Parts(X, y, Schema(plain_features(X), "RiskPerformance", "Good", "Bad"), text)
    features = [_heloc_feature(X[name]) for name in X.columns]
    return Parts(X, y, Schema(features, "RiskPerformance", "Good", "Bad"), _HELOC_TEXT)


def _heloc_feature(column: pd.Series[int]) -> Feature:
    name = str(column.name)
    codes = [code for code in _SPECIAL if (column == code).any()]
    ordinal, percent = name.startswith("MaxDelq"), name in _HELOC_PERCENT
    return Feature(
        name,
        "ordinal" if ordinal else "integer",
        lower=0.0 if percent else None,
        upper=100.0 if percent else None,
        categories=sorted(set(column.tolist()) - set(_SPECIAL)) if ordinal else (),
        missing="impute" if codes else "refuse",
        missing_codes=codes,
        action=_HELOC_ACTIONS.get(name, "free"),
        note=_HELOC_NOTES.get(name, ""),
    )


_MONTHS = ("0", "2", "3", "4", "5", "6")  # the file has no PAY_1
_TAIWAN_CATEGORICAL = ("SEX", "EDUCATION", "MARRIAGE")
_TAIWAN_ACTIONS = actions(
    {
        "immutable": [
            *("LIMIT_BAL", *_TAIWAN_CATEGORICAL),
            *(f"PAY_{month}" for month in _MONTHS),
            *(f"BILL_AMT{i}" for i in range(1, 7)),
        ],
        "increase_only": ["AGE"],
    }
)
_TAIWAN_NOTES = {
    "LIMIT_BAL": "set by the bank",
    "SEX": "1 male, 2 female",
    "EDUCATION": "1 graduate school, 2 university, 3 high school, 4 others; 0, 5 and 6 are undocumented",
    "MARRIAGE": "1 married, 2 single, 3 others; 0 is undocumented",
    "AGE": "only grows",
}
_TAIWAN_TEXT = (
    "Credit card clients in April to September 2005, money in New Taiwan dollars; favourable is no "
    "default in the next month. Repayment status and bills are history at the time of decision; "
    "what was paid "
    "is what is left to act on."
)


def taiwan_credit(raw: pd.DataFrame, paper: bool) -> Parts:
    """The 30,000 clients without their ID; the paper's variant has its three categorical columns last."""
    target = "default.payment.next.month"
    X, y = raw.drop(columns=["ID", target]), raw[target]
    if paper:
        X = X[[name for name in X.columns if name not in _TAIWAN_CATEGORICAL] + list(_TAIWAN_CATEGORICAL)]
        return Parts(X, y, Schema(plain_features(X, _TAIWAN_CATEGORICAL), target, 0, 1), _TAIWAN_TEXT)
    features = [_taiwan_feature(X[name]) for name in X.columns]
    return Parts(X, y, Schema(features, target, 0, 1), _TAIWAN_TEXT)


def _taiwan_feature(column: pd.Series[int]) -> Feature:
    name = str(column.name)
    action, note = _TAIWAN_ACTIONS.get(name, "free"), _TAIWAN_NOTES.get(name, "")
    if name in _TAIWAN_CATEGORICAL:
        kind: Kind = "binary" if name == "SEX" else "categorical"
        return Feature(name, kind, categories=sorted(column.unique().tolist()), action=action, note=note)
    if name.removeprefix("PAY_") in _MONTHS:
        note = "-2 no consumption, -1 paid in full, 0 minimum paid, 1 to 8 months of delay"
        return Feature(name, "ordinal", categories=range(-2, 9), action=action, note=note)
    return Feature(
        name, "integer", lower=0.0 if name.startswith("PAY_AMT") else None, action=action, note=note
    )

"""What is known of each dataset before its file is opened: its origin and its checksums."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from veritracer.errors import DatasetError, message
from veritracer.schema.tables import unknown_name

VARIABLE = "VERITRACER_DATA"


@dataclass(frozen=True)
class Source:
    """A dataset's origin and checksums; ``header`` is its first line, ``url`` a download without a login."""

    title: str
    rows: int
    source: str
    licence: str
    how: str
    sha256_gz: str = ""
    sha256_text: str = ""
    header: str = ""
    url: str | None = None


@dataclass(frozen=True)
class Info:
    """What a person wants to know of a dataset; ``path`` is its file where there is one.

    ``how`` says how to get it.
    """

    name: str
    title: str
    rows: int
    source: str
    licence: str
    how: str
    downloadable: bool
    path: Path | None


_RAW = "https://raw.githubusercontent.com"
SOURCES = {
    "breast_cancer": Source(
        title="Breast cancer Wisconsin (diagnostic)",
        rows=569,
        source="bundled with scikit-learn (UCI id 17)",
        licence="CC BY 4.0",
        how="it comes with scikit-learn: just load it",
    ),
    "ctg": Source(
        title="Cardiotocography (fetal health)",
        rows=2126,
        source="https://archive.ics.uci.edu/dataset/193 (doi 10.24432/C51S4N)",
        licence="CC BY 4.0",
        how="run `veritracer datasets fetch ctg`, or take Kaggle's fetal_health.csv",
        sha256_gz="e85ed5bf3f10aa957fe49790938c8a639cf6b542cfa1c0935609b6eb75d8e2ef",
        sha256_text="55b4dcf2b15d34289fb958024a9d3075c1e25cab908ef151ff8a0840b8643b17",
        header=(
            "baseline value,accelerations,fetal_movement,uterine_contractions,light_decelerations,"
            "severe_decelerations,prolongued_decelerations,abnormal_short_term_variability,"
            "mean_value_of_short_term_variability,percentage_of_time_with_abnormal_long_term_variability,"
            "mean_value_of_long_term_variability,histogram_width,histogram_min,histogram_max,"
            "histogram_number_of_peaks,histogram_number_of_zeroes,histogram_mode,histogram_mean,"
            "histogram_median,histogram_variance,histogram_tendency,fetal_health"
        ),
        url=f"{_RAW}/KhushiiAgarwal/Fetal_Health_Prediction/116db592590520f923161b9fbcaa1b4193c2a707/fetal_health.csv",
    ),
    "heloc": Source(
        title="FICO home equity line of credit (HELOC)",
        rows=10459,
        source="https://community.fico.com/s/explainable-machine-learning-challenge",
        licence="FICO's own terms of use",
        how="accept FICO's terms at https://community.fico.com/s/explainable-machine-learning-challenge",
        sha256_gz="e74c24c2810396313f41f430e849e92d299308008bc128dea20f8add4a958f6b",
        sha256_text="f66d77f4e4e27c11205ba6258008f5e071f1f09724f4893e9ff2840a4e99f259",
        header=(
            "RiskPerformance,ExternalRiskEstimate,MSinceOldestTradeOpen,MSinceMostRecentTradeOpen,"
            "AverageMInFile,NumSatisfactoryTrades,NumTrades60Ever2DerogPubRec,NumTrades90Ever2DerogPubRec,"
            "PercentTradesNeverDelq,MSinceMostRecentDelq,MaxDelq2PublicRecLast12M,MaxDelqEver,NumTotalTrades,"
            "NumTradesOpeninLast12M,PercentInstallTrades,MSinceMostRecentInqexcl7days,NumInqLast6M,"
            "NumInqLast6Mexcl7days,NetFractionRevolvingBurden,NetFractionInstallBurden,"
            "NumRevolvingTradesWBalance,NumInstallTradesWBalance,NumBank2NatlTradesWHighUtilization,"
            "PercentTradesWBalance"
        ),
    ),
    "oula": Source(
        title="Open University Learning Analytics, one row for each student and presentation",
        rows=32593,
        source="https://analyse.kmi.open.ac.uk/open_dataset (doi 10.1038/sdata.2017.171)",
        licence="CC BY 4.0",
        how="the merged table is not published in this form: ask the maintainers for a copy of the file",
        sha256_gz="172ab25d73f110c6abebac37e89a7ebcb17f3ef473dfd8ad11e85423756a4e16",
        sha256_text="9830563addcbaca1263fd3e18d73bc4a16c439bc5987904b4f51f909deca982c",
        header=(
            "num_of_prev_attempts,weight,weighted_score,forumng_click,homepage_click,oucontent_click,"
            "resource_click,subpage_click,url_click,dataplus_click,glossary_click,oucollaborate_click,"
            "quiz_click,ouelluminate_click,sharedsubpage_click,questionnaire_click,page_click,externalquiz_click,"
            "ouwiki_click,dualpane_click,folder_click,repeatactivity_click,htmlactivity_click,"
            "code_module,gender,region,highest_education,imd_band,age_band,studied_credits,disability,final_result"
        ),
    ),
    "taiwan_credit": Source(
        title="Default of credit card clients (Taiwan, 2005)",
        rows=30000,
        source="https://archive.ics.uci.edu/dataset/350 (doi 10.24432/C55S3H)",
        licence="CC BY 4.0",
        how="run `veritracer datasets fetch taiwan_credit`, or take Kaggle's UCI_Credit_Card.csv",
        sha256_gz="86ea40d2c9cb7138c68d94a1c24e2f61955e14fffe09ef179bacf50672f62ff7",
        sha256_text="f7b7d22d1f8dd27dadb25d4b78d8a4ae7c441ab6cc12d1ea58c0efc54d4d1788",
        header=(
            "ID,LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE,PAY_0,PAY_2,PAY_3,PAY_4,PAY_5,PAY_6,BILL_AMT1,BILL_AMT2,"
            "BILL_AMT3,BILL_AMT4,BILL_AMT5,BILL_AMT6,PAY_AMT1,PAY_AMT2,PAY_AMT3,PAY_AMT4,PAY_AMT5,PAY_AMT6,"
            "default.payment.next.month"
        ),
        url=f"{_RAW}/nbgraham/SL-Loan-Default/594b9af682b5fd052f65a87dc08315ecb347b513/UCI_Credit_Card.csv",
    ),
    "who": Source(
        title="Life expectancy (WHO), one row for each country and year",
        rows=2938,
        source="https://www.kaggle.com/datasets/kumarajarshi/life-expectancy-who",
        licence="the WHO's terms: reuse with attribution",
        how="log in at https://www.kaggle.com/datasets/kumarajarshi/life-expectancy-who",
        sha256_gz="5767ac6dbb57cdbf35cca29b1bcf835c07d43525802fd83e931ba8995eb1bc01",
        sha256_text="ed6c132d86790e0e71d3d0444a0db4c94f8d27baefda0271e9f9bd75f0fec3b0",
        header=(
            "Country,Year,Status,Life expectancy,Adult Mortality,infant deaths,Alcohol,"
            "percentage expenditure,Hepatitis B,"
            "Measles,BMI,under-five deaths,Polio,Total expenditure,Diphtheria,HIV/AIDS,GDP,"
            "Population,thinness 1-19 years,thinness 5-9 years,Income composition of resources,Schooling"
        ),
    ),
}


def names() -> tuple[str, ...]:
    """The names that ``load`` knows."""
    return tuple(SOURCES)


def source_of(name: str) -> Source:
    """The entry of this dataset; an unknown name is refused."""
    if name not in SOURCES:
        raise DatasetError(unknown_name("the name of a dataset", name, SOURCES))
    return SOURCES[name]


def info(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Info:
    """What is known of the dataset, and the path of its file if it is in the data folder."""
    source = source_of(name)
    folder = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    path = Path(folder) / file_name(name) if folder and source.sha256_text else None
    found = path if path is not None and path.is_file() else None
    return Info(
        name=name,
        title=source.title,
        rows=source.rows,
        source=source.source,
        licence=source.licence,
        how=source.how,
        downloadable=source.url is not None,
        path=found,
    )


def file_name(name: str) -> str:
    """The name that the dataset's file has in a data folder."""
    return f"{name}.csv.gz"


def folder_of(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The data folder: the argument, else what the environment says."""
    folder = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not folder:
        raise DatasetError(
            message(
                f"a data folder with {file_name(name)}",
                f"no data_dir, and {VARIABLE} is not set",
                f"set {VARIABLE} to the folder; the file: {source_of(name).how}",
            )
        )
    return Path(folder)

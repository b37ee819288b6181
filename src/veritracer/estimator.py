"""The scikit-learn estimator: a classifier whose counterfactuals are certified while it learns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from veritracer.bounds.methods import Method as BoundName
from veritracer.certificate import Certificates, certify, with_encoding
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import (
    DataError,
    TrainingError,
    message,
    unknown_name,
)
from veritracer.models.balls import Norm
from veritracer.models.network import from_module, threshold_logit, to_module
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.options import ExplainOptions, IssueOptions, Original, Uncertified, takes
from veritracer.recourse import Recourse, recourse_of
from veritracer.schema import Schema, Value
from veritracer.schema.labels import Convention
from veritracer.search.reference import Neighbours, QuantileBounds, ReferenceData, subsample
from veritracer.training import Panel, recipes
from veritracer.training.algorithm import StopReason, TrainingResult, TrainingRun
from veritracer.training.checkpoints import Checkpoint
from veritracer.training.config import GeneratorKind, Initialisation, Training, TrainingConfig
from veritracer.training.data import TrainingData, as_table, prepare
from veritracer.training.fine_tuning import EPOCHS, FINE_TUNE_LR_FACTOR, FineTuning
from veritracer.training.generator import Generator, Noise, forward_with_context
from veritracer.training.recipes import Recipe

if TYPE_CHECKING:
    from veritracer.ledger import Issued, Ledger, UpdateReport
    from veritracer.ledger.snapshot import Source


class VeriTraCER(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier and a counterfactual generator, trained together against a set of models.

    Parameters
    ----------
    schema
        What is known of the table; ``None`` infers it from ``X``.
    favourable
        The label that people want: one of the two in ``y``, or ``vt.POSITIVE`` for ``classes_[1]``, which
        scikit-learn calls the positive class. It may be left out where the schema names it, or where the
        labels are a well-known pair such as approved and denied; ``fit`` raises an error where nothing says
        which label it is, or where the schema names another one.
    recipe
        Where the settings below come from that are None: None is the library's own recipe. ``"paper"`` trains
        as the paper's code does on HELOC, ``"paper:ctg"`` as on CTG (also ``heloc``, ``taiwan_credit``,
        ``oula``, ``who``), ``"paper-text"`` as the paper's text says. These recipes have two logits and no
        panel. Other settings of a recipe can be changed by a mapping, such as ``{"recipe": "paper:heloc",
        "regenerate": 1}``. ``settings_`` has the values that were used.
    method
        ``"veritracer"`` trains against the whole set; ``"counternet"`` without the robust loss;
        ``"standard"`` trains the classifier alone.
    bound
        How the set is over-approximated in training: ``"ibp"``, ``"crown-ibp"`` or ``"simul-crown"``.
    kappa, norm, radius
        The set, as in ``ParamSet.around``: every weight matrix and bias vector may move by kappa times
        its mean magnitude. Without a recipe kappa is 0.2.
    generator
        ``"residual"`` learns a change to the row, ``"counternet"`` the whole row from the latents;
        ``"neighbour"`` is fixed (the nearest training row with the other label): only the classifier learns.
    hidden, generator_hidden, slope
        Widths of the hidden layers, and the slope of LeakyReLU below zero in the classifier (0 is ReLU).
    weight_accuracy, weight_robust, weight_proximity, weight_validity
        λ1, λ2, λ3 and λ4 of the paper's Equations 1 and 2.
    panel
        Independent models that the classifier is held to (``vt.Panel``), so that its counterfactuals improve
        the person and not only this model's opinion. ``"default"`` fits one where ``method="veritracer"``;
        ``None`` is Algorithm 1 as in the paper.
    initialisation
        ``"torch"`` starts the classifier as ``nn.Linear`` does. ``"small"`` starts it near zero: without a
        panel, models of other seeds then honour more of its counterfactuals, but under the robust loss most
        of its units die, which costs the ranking of people.
    class_weight
        ``None``, ``"balanced"``, or a mapping from label to weight, for the accuracy loss of rare classes.
    threshold
        The probability above which a decision is favourable. It is part of the last bias, so that the sign
        of the logit is the decision.
    approval_rate
        Which share of the training rows is to be accepted, instead of a threshold: that is then found, first
        by the panel (or a logistic regression) for training, and at its end exactly.
    learning_rate, batch_size, epochs, clip_norm
        Of the optimiser (Adam). ``epochs=None`` takes 400 steps and three for every two rows, up to 2,500,
        and 12 epochs at least. Gradients longer than ``clip_norm`` are shortened to it.
    warmup, ramp
        Shares of the run: first without the robust loss, then with kappa and its weight growing.
    validation_fraction, patience
        Share of the rows kept aside to choose the best epoch: the lowest training objective on them once
        kappa has fully grown. Training stops early after ``patience`` epochs without progress (``None``:
        never).
    keep_rows
        How many training rows (encoded) the model keeps, and saves, for ``explain`` to start from and to
        stay near to. With 0 a saved model holds nobody's data, and ``explain`` has the generator alone.
    device
        Where to train: ``"cpu"``, ``"cuda"``, ... The fitted model is on the CPU.
    random_state
        Seed of everything random; the same seed gives the same model, bit for bit, on one machine.
    verbose
        1 shows a progress bar with loss, accuracy, validity and certified rate.

    Attributes
    ----------
    classes_, schema_, encoding_
        The labels; the schema; the map between table and tensor.
    panel_
        The fitted panel, or None.
    threshold_
        The probability above which decisions are favourable: as given, or as ``approval_rate`` asks.
    classifier_
        Plain ``nn.Sequential`` of Linear and (Leaky)ReLU in float64, one logit: above 0 means favourable.
    history_
        A DataFrame with a row for each epoch: losses, accuracy, validity, certified rate, proximity, ...
    best_epoch_, stopped_
        The epoch that was restored, counted from 1, and why training ended, in words.
    interrupted_
        Whether ``fit`` was ended by Ctrl-C; a file does not keep it.

    >>> import veritracer as vt
    >>> data = vt.datasets.load("breast_cancer")
    >>> model = VeriTraCER(schema=data.schema, method="standard", epochs=60).fit(data.X, data.y)
    >>> model.predict(data.X.head(2)).tolist()
    ['malignant', 'malignant']
    """

    update_: UpdateReport
    """What the update came to that made this estimator; absent where none did."""
    _saved_settings: TrainingConfig | None = None
    """The settings of a model that was loaded, until it is fitted anew."""

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        favourable: Value | Convention | None = None,
        recipe: Recipe | None = None,
        method: Training = "veritracer",
        bound: BoundName = "simul-crown",
        kappa: float | None = None,
        norm: Norm = "linf",
        radius: RadiusRule | float | None = None,
        generator: GeneratorKind | None = None,
        hidden: Sequence[int] | None = None,
        generator_hidden: Sequence[int] | None = None,
        slope: float | None = None,
        weight_accuracy: float | None = None,
        weight_robust: float | None = None,
        weight_proximity: float | None = None,
        weight_validity: float | None = None,
        panel: Panel | Literal["default"] | None = "default",
        initialisation: Initialisation | None = None,
        class_weight: str | dict[Any, float] | None = None,
        threshold: float = 0.5,
        approval_rate: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        warmup: float | None = None,
        ramp: float | None = None,
        validation_fraction: float | None = None,
        patience: int | None = None,
        clip_norm: float | None = None,
        keep_rows: int = 20_000,
        device: str = "cpu",
        random_state: int | None = 0,
        verbose: int = 0,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(
                unknown_name("a parameter of VeriTraCER", next(iter(unknown)), type(self)._get_param_names())
            )
        self.schema = schema
        self.favourable = favourable
        self.recipe = recipe
        self.method = method
        self.bound = bound
        self.kappa = kappa
        self.norm = norm
        self.radius = radius
        self.generator = generator
        self.hidden = hidden
        self.generator_hidden = generator_hidden
        self.slope = slope
        self.weight_accuracy = weight_accuracy
        self.weight_robust = weight_robust
        self.weight_proximity = weight_proximity
        self.weight_validity = weight_validity
        self.panel = panel
        self.initialisation = initialisation
        self.class_weight = class_weight
        self.threshold = threshold
        self.approval_rate = approval_rate
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.warmup = warmup
        self.ramp = ramp
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.clip_norm = clip_norm
        self.keep_rows = keep_rows
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """The estimator, trained on raw rows and labels. Ctrl-C stops after the batch and keeps the best."""
        return self._adopt(self._run(X, y, sample_weight, [self._seed()], [[]]), 0, X)

    def fit_many(
        self,
        X: Any,
        y: ArrayLike,
        seeds: Iterable[int],
        *,
        leave_out: Sequence[ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        share_panel: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> list[Self]:
        """A fitted estimator for each seed, all trained at once in one batched run.

        ``leave_out`` has, for each of them, the positions of rows that it must not see: they get weight 0,
        and its panel does not see them either. Each model has a panel of its own, from its own seed;
        ``share_panel`` fits one, from the first seed, for all: faster, and the models are then less
        independent of each other. It cannot be had together with ``leave_out``. ``checkpoint`` is a file that
        is written while the run goes on; a run that finds it continues from there.
        """
        streams = [int(seed) for seed in seeds]
        left_out = [[] for _ in streams] if leave_out is None else list(leave_out)
        if len(left_out) != len(streams) or not streams:
            received = f"{len(left_out)} for {len(streams)} seeds"
            raise TrainingError(
                message("seeds, and one leave_out for each", received, "give as many of both")
            )
        if share_panel and leave_out is not None:
            remedy = "leave out share_panel: one panel for all would have seen what each leaves out"
            raise TrainingError(message("a panel for each model", "share_panel with leave_out", remedy))
        at = None if checkpoint is None else Checkpoint(checkpoint)
        fitted = self._run(X, y, sample_weight, streams, left_out, share_panel=share_panel, checkpoint=at)
        made = [type(self)(**{**self.get_params(deep=False), "random_state": seed}) for seed in streams]
        return [model._adopt(fitted, index, X) for index, model in enumerate(made)]

    def continue_fit(self, X: Any, y: ArrayLike) -> Self:
        """A new estimator: this one, trained on with its own losses on other rows; this one stays.

        Classifier and generator go on learning together for 20 epochs, at a fifth of the learning rate and
        without a warm-up, as the paper fine-tunes. The encoding stays. ``update`` fine-tunes the classifier
        alone, and keeps promises.
        """
        check_is_fitted(self, "classifier_")
        config, seed = recipes.continued(self.training_config()), self._seed()
        schema, encoding = self.encoding_.schema, self.encoding_
        data = self._prepared(X, y, config, [seed], [[]], schema=schema, encoding=encoding)
        start = [(from_module(self.classifier_)[1], self.generator_theta_)]
        fitted = self._training_run(config).fit(data, [seed], start=start)
        made = type(self)(**self.get_params(deep=False))
        return made._adopt(fitted, 0, X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The label of each row."""
        favourable = self.decision_function(X) > 0
        labels = np.asarray(self.classes_)
        yes = self._favourable_column()
        decided: NDArray[Any] = np.where(favourable, labels[yes], labels[1 - yes])
        return decided

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each label, (rows, 2), in the order of ``classes_``."""
        logit = torch.from_numpy(self.decision_function(X)) + threshold_logit(self.threshold_)
        favourable = torch.sigmoid(logit).numpy()
        pair = np.stack([1 - favourable, favourable], -1)
        return pair if self._favourable_column() == 1 else pair[:, ::-1].copy()

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The logit of each row: above 0 means favourable."""
        check_is_fitted(self, "classifier_")
        return self.logits(self._encode(X)).numpy()

    def logits(self, x: Tensor) -> Tensor:
        """The logit of encoded rows (n, d): of two outputs, the second minus the first."""
        network, theta = from_module(self.classifier_)
        with torch.no_grad():
            return network.logit(theta, x.to(theta[0]))

    def propose(self, X: Any) -> pd.DataFrame:
        """The generator's own counterfactual for each row, as raw values; not refined and not certified."""
        return self.encoding_.decode(self.propose_encoded(self._encode(X)), original=as_table(X))

    def propose_encoded(self, x: Tensor, *, random_state: int | None = None) -> Tensor:
        """The generator's own counterfactuals of encoded rows (n, d): legal for the people they are for.

        A generator that draws categories in training draws them here with a ``random_state``; without one
        they are the most likely ones.
        """
        check_is_fitted(self, "classifier_")
        if self.generator_ is None:
            received = f"method={self.method!r}, which trains none"
            remedy = "fit with method='veritracer' or 'counternet'"
            raise TrainingError(message("a model with a generator", received, remedy))
        network, theta = from_module(self.classifier_)
        noise = None if random_state is None else Noise([torch.Generator().manual_seed(random_state)])
        with torch.no_grad():
            _, context = forward_with_context(network, theta, x)
            return self.encoding_.project(self.generator_.propose(self.generator_theta_, context, noise), x)

    @takes(ExplainOptions)
    def explain(self, X: Any, options: ExplainOptions) -> Counterfactuals:
        """A certified counterfactual near each row: see ``Recourse.explain`` for the options.

        It starts from the generator's answer (from training rows where there is no generator, or where its
        answer cannot be certified), and certifies exactly the values that are shown.
        """
        check_is_fitted(self, "classifier_")
        return self.recourse()._explain(self._checked(X), options)

    def issue(
        self,
        X: Any,
        *,
        ids: Sequence[Any],
        ledger: Ledger | str | os.PathLike[str],
        expires: timedelta | datetime | None = IssueOptions.expires,
        now: datetime | None = None,
        original: Original = IssueOptions.original,
        key: bytes | str | None = None,
        uncertified: Uncertified = IssueOptions.uncertified,
        allow_duplicate: bool = IssueOptions.allow_duplicate,
        **options: Any,
    ) -> Issued:
        """Explain ``X``, and write every certified counterfactual into the ledger as a promise.

        ``ids`` says whose each row is; ``ledger`` may be a path or a database's URL; ``expires`` is a
        duration or a day (365 days by default; None: never); ``original`` says how people's own rows are
        kept: ``"plain"``, ``"encrypted"`` with ``key``, or only their ``"commitment"``. Counterfactuals that
        are not certified are skipped unless ``uncertified`` says otherwise, and an application that has a
        live promise gets no second one unless ``allow_duplicate`` is True: see ``Ledger.issue``. The result
        says how many of each were left out. ``options`` are those of ``explain``.
        """
        from veritracer.ledger import open_ledger

        found = self.explain(X, **options)
        with open_ledger(ledger) as place:
            issued = place.issue(
                found,
                self.classifier_,
                ids=ids,
                threshold=self.threshold_,
                expires=expires,
                now=now,
                original=original,
                key=key,
                uncertified=uncertified,
                allow_duplicate=allow_duplicate,
            )
        return replace(issued, recourse=found)

    def update(
        self,
        X: Any,
        y: ArrayLike,
        *,
        keep: Source | str | os.PathLike[str] | None = None,
        epochs: int = EPOCHS,
        learning_rate: float | None = None,
        panel: Literal["keep", "refit"] | None = "keep",
        **options: Any,
    ) -> Self:
        """A new estimator, fine-tuned on new rows, that keeps the promises in ``keep``; this one stays.

        The classifier learns by cross-entropy inside the sets of all live promises; encoding, schema and
        generator stay. ``update_`` says what that came to, against a free update and training from scratch.
        ``keep`` is a ledger, its path or its URL; None keeps nothing.

        Parameters
        ----------
        epochs, learning_rate
            Of fine-tuning; by default a fifth of the learning rate of training.
        panel
            The classifier stays held to the panel that it has (``"keep"``) or to one that is fitted to the
            new rows (``"refit"``: many of them, whose labels mean something new); None lets it go, and the
            updated model has no panel.
        penalty, least_kappa
            Weight of a hinge on promises that no set protects: valid on their day only, conditional, proved
            below ``least_kappa`` only, or made by a model with another encoding, threshold or architecture.
        max_loss, allow_broken
            ``PromiseError`` is raised where keeping the promises costs more accuracy than ``max_loss`` (None:
            any) against the better of a free update and of training from scratch, or breaks more than
            ``allow_broken`` promises that are kept today. Nothing is broken unseen.
        held_out, compare
            Share of the new rows that is kept aside to judge on; whether training from scratch, and the
            release of promises, are tried too.
        at
            Promises that are live at this moment; None is now.
        """
        from veritracer.ledger.update import update

        check_is_fitted(self, "classifier_")
        options |= {"keep": keep, "epochs": epochs, "learning_rate": learning_rate, "panel": panel}
        return update(self, (X, y), self._encode(X), random_state=self._seed(), **options)

    def fine_tuning(self, **changes: Unpack[FineTuning]) -> FineTuning:
        """How this model is trained on: slower than it was trained, at its own batch size and threshold."""
        own: FineTuning = {
            "learning_rate": FINE_TUNE_LR_FACTOR * self.settings_.learning_rate,
            "batch_size": self.settings_.batch_size,
            "threshold": self.threshold_,
        }
        return {**own, **changes}

    def recourse(self, schema: Schema | None = None) -> Recourse:
        """What answers ``explain``; with another ``schema``, other rules of what may change."""
        check_is_fitted(self, "classifier_")
        return Recourse(
            self.classifier_,
            schema,
            self.encoding_,
            kappa=self.settings_.kappa,
            norm=self.norm,
            radius=self.settings_.radius,
            propose=None if self.generator_ is None else self.propose_encoded,
            reference=self.reference_data(),
            threshold=self.threshold_,
        )

    def reference_data(self) -> ReferenceData:
        """Return the kept training rows, the panel and the quantile bounds."""
        return ReferenceData(
            self.neighbours_, self.panel_, self.quantile_bounds_, threshold_logit(self.threshold_)
        )

    def certify(self, X: Any, X_cf: Any, *, kappa: float | None = None) -> Certificates:
        """Certificates for counterfactuals from anywhere, both tables as raw values."""
        check_is_fitted(self, "classifier_")
        original, counterfactual = self._encode(X), self._encode(X_cf)
        if len(original) != len(counterfactual):
            received = f"{len(counterfactual):,} for {len(original):,}"
            raise DataError(message("one counterfactual for each row", received, "pass them in pairs"))
        found = certify(self.classifier_, original, counterfactual, self.param_set(kappa))
        return with_encoding(found, self.encoding_.digest, self.threshold_)

    def param_set(self, kappa: float | None = None) -> ParamSet:
        """The set of models around this one that its certificates speak of."""
        check_is_fitted(self, "classifier_")
        kappa = self.settings_.kappa if kappa is None else kappa
        return ParamSet.around(self.classifier_, kappa, self.norm, self.settings_.radius)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model as a folder of safetensors and JSON, atomically."""
        check_is_fitted(self, "classifier_")
        from veritracer.persistence import save  # which reads models too, and so knows this class

        save(self, folder)

    def set_params(self, **params: Any) -> Self:
        """The estimator with these parameters; an unknown one is refused with a suggestion."""
        names = self._get_param_names()
        for name in params:
            if name.split("__")[0] not in names:
                raise ValueError(unknown_name("a parameter of VeriTraCER", name, names))
        super().set_params(**params)
        return self

    def _run(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        seeds: list[int],
        leave_out: Sequence[ArrayLike],
        *,
        share_panel: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> TrainingResult:
        """One run of training on raw rows, for all seeds."""
        self._saved_settings = None
        config = self.training_config()
        prepared = self._prepared(
            X,
            y,
            config,
            seeds,
            leave_out,
            schema=self.schema,
            favourable=self.favourable,
            sample_weight=sample_weight,
        )
        run = self._training_run(config)
        return run.fit(prepared, seeds, share_panel=share_panel, checkpoint=checkpoint)

    def _training_run(self, config: TrainingConfig) -> TrainingRun:
        return TrainingRun(
            config,
            self._chosen_panel(),
            self.threshold,
            self.approval_rate,
            self.device,
            bool(self.verbose),
        )

    def _prepared(
        self,
        X: Any,
        y: ArrayLike,
        config: TrainingConfig,
        seeds: list[int],
        leave_out: Sequence[ArrayLike],
        *,
        sample_weight: ArrayLike | None = None,
        **known: Any,
    ) -> TrainingData:
        """The rows, encoded and split as the configuration asks; ``known`` goes to ``prepare``."""
        return prepare(
            X,
            y,
            sample_weight=sample_weight,
            class_weight=self.class_weight,
            validation_fraction=config.validation_fraction,
            validation_seeds=seeds if config.validation == "random" else None,
            leave_out=leave_out,
            device=self.device,
            **known,
        )

    def _chosen_panel(self) -> Panel | None:
        """The panel to be fitted; by default one where the recipe has one and the method uses it."""
        if self.panel != "default":
            return self.panel
        return Panel() if self.method == "veritracer" and self.recipe is None else None

    def _adopt(self, fitted: TrainingResult, index: int, X: Any) -> Self:
        """The estimator with what was learned by model ``index`` of the run."""
        prepared, trained = fitted.data, fitted.trained
        self.schema_, self.encoding_ = prepared.schema, prepared.encoding
        labels = [prepared.schema.unfavourable, prepared.schema.favourable]
        self.classes_ = np.unique(np.array(labels))
        theta, self.rate_threshold_ = fitted.classifier(index)
        self.classifier_ = to_module(trained.network, theta).eval()
        self.panel_: Panel | None = fitted.panel(index)
        self.generator_: Generator | None = trained.generator
        self.generator_theta_ = fitted.generator_theta(index)
        self.history_ = pd.DataFrame(trained.history[index])
        self.best_epoch_, self.stopped_ = trained.best_epoch[index], trained.stopped
        self.interrupted_ = trained.stop_reason is StopReason.INTERRUPTED
        x, favourable = fitted.seen(index)
        self.quantile_bounds_: QuantileBounds | None = QuantileBounds.of(prepared.encoding, x, favourable)
        labelled = subsample(torch.cat([x, favourable.to(x).unsqueeze(-1)], -1), self.keep_rows)
        self.neighbours_ = Neighbours(labelled[:, :-1], labelled[:, -1] > 0.5)
        ignored = prepared.schema.ignored_names
        named = [c for c in X.columns if c not in ignored] if isinstance(X, pd.DataFrame) else None
        self.describe_inputs(named)
        return self

    @property
    def threshold_(self) -> float:
        """The probability above which decisions are favourable: as given, or as ``approval_rate`` asks."""
        if self.approval_rate is None or self.rate_threshold_ is None:
            return self.threshold
        return self.rate_threshold_

    def _encode(self, X: Any) -> Tensor:
        return self.encoding_.encode(self._checked(X))

    def _checked(self, X: Any) -> Any:
        """The table; an array of the wrong shape is refused in scikit-learn's words."""
        table = as_table(X)
        width = self.n_features_in_
        if isinstance(table, np.ndarray) and table.ndim == 2 and table.shape[1] != width:
            received = (
                f"X has {table.shape[1]} features, but VeriTraCER is expecting {width} features as input"
            )
            raise DataError(message(f"{width} columns", received, "pass the columns that it was fitted on"))
        if isinstance(table, np.ndarray) and table.ndim == 1:
            remedy = "Reshape your data: pass one row as [[...]]"
            raise DataError(message(f"a table with {width} columns", "one dimension", remedy))
        return table

    def describe_inputs(self, columns: list[str] | None) -> None:
        """Set what scikit-learn wants to know of the inputs."""
        self.n_features_in_ = len(self.encoding_.schema)
        self.feature_names_in_ = None if columns is None else np.array(columns, dtype=object)

    @property
    def settings_(self) -> TrainingConfig:
        """Every setting of training: as given, else as in the recipe, else the library's own."""
        return self.training_config()

    def training_config(self) -> TrainingConfig:
        """The flat parameters, with those of the recipe where they are None, as one checked value."""
        recipes.check(self.recipe)
        saved = self._saved_settings
        chosen = recipes.settings_of(self.recipe, self.method) if saved is None else asdict(saved)
        names = {f.name for f in fields(TrainingConfig)} & set(self._get_param_names())
        given = {name: getattr(self, name) for name in names}
        chosen |= {name: value for name, value in given.items() if value is not None}
        chosen["threshold_logit"] = threshold_logit(getattr(self, "threshold_", self.threshold))
        for name in {"hidden", "generator_hidden"} & chosen.keys():
            chosen[name] = tuple(int(width) for width in chosen[name])
        return TrainingConfig(**chosen).checked()

    def _seed(self) -> int:
        if self.random_state is None:
            return int(torch.seed() % 2**31)
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        return int(self.random_state)

    def _favourable_column(self) -> int:
        return int(np.flatnonzero(np.asarray(self.classes_) == self.encoding_.schema.favourable)[0])

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


@recourse_of.register(VeriTraCER)
def _recourse_of(model: VeriTraCER) -> Recourse:
    return model.recourse()

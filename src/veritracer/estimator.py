"""The scikit-learn estimator: a classifier whose counterfactuals are certified while it learns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from veritracer.bounds.methods import Method as BoundName
from veritracer.certificate import Certificates
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import DataError, TrainingError, message, unknown_name
from veritracer.models.balls import Norm
from veritracer.models.network import from_module, threshold_logit, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.options import Effort, ExplainOptions, IssueOptions, takes
from veritracer.recourse import Recourse, recourse_of
from veritracer.schema import Schema, Value
from veritracer.schema.labels import Convention
from veritracer.search.reference import Neighbours, QuantileBounds, ReferenceData, subsample
from veritracer.training import Panel, recipes
from veritracer.training.algorithm import TrainedModels, fit_models
from veritracer.training.checkpoints import Checkpoint
from veritracer.training.config import GeneratorKind, Initialisation, Training, TrainingConfig
from veritracer.training.data import TrainingData, as_table, prepare
from veritracer.training.fine_tuning import EPOCHS, FINE_TUNE_LR_FACTOR
from veritracer.training.generator import Generator, Noise, forward_with_context
from veritracer.training.recipes import Recipe

if TYPE_CHECKING:
    from veritracer.ledger import Issued, Ledger, UpdateReport


class VeriTraCER(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier and a counterfactual generator, trained together against a set of models.

    Parameters
    ----------
    schema
        Description of the table; ``None`` infers it from ``X``.
    favourable
        The favourable label: one of the two in ``y``, or ``vt.POSITIVE`` for ``classes_[1]``, which
        scikit-learn calls the positive class. It can be omitted if the schema names it, or if the labels are
        a well-known pair such as approved and denied. ``fit`` raises an error if the favourable label is
        unknown, or if the schema names another one.
    recipe
        Source of the settings below that are None. ``None`` is the library's own recipe. ``"paper"`` trains
        like the paper's code on HELOC, ``"paper:ctg"`` like its code on CTG (also ``heloc``,
        ``taiwan_credit``, ``oula``, ``who``), and ``"paper-text"`` as described in the paper. These recipes
        have two logits and no panel. A mapping changes other settings of a recipe, such as ``{"recipe":
        "paper:heloc", "regenerate": 1}``. ``settings_`` has the values that were used.
    method
        ``"veritracer"`` trains against the whole set; ``"counternet"`` without the robust loss;
        ``"standard"`` trains the classifier alone.
    bound
        Over-approximation of the set in training: ``"ibp"``, ``"crown-ibp"`` or ``"simul-crown"``.
    kappa, norm, radius
        The set of models, as in ``ParamSet.around``: every weight matrix and bias vector may move by kappa
        times its mean magnitude. Without a recipe, kappa is 0.2.
    generator
        ``"residual"`` learns a change to the row, ``"counternet"`` the whole row from the latents.
        ``"neighbour"`` is not trained: it returns the nearest training row with the other label.
    hidden, generator_hidden, slope
        Widths of the hidden layers, and the slope of LeakyReLU below zero in the classifier (0 is ReLU).
    weight_accuracy, weight_robust, weight_proximity, weight_validity
        λ1, λ2, λ3 and λ4 of the paper's Equations 1 and 2.
    panel
        Independent models that the classifier must agree with (``vt.Panel``), so that counterfactuals are
        not specific to this model. ``"default"`` fits one if ``method="veritracer"``; ``None`` is
        Algorithm 1 as in the paper.
    initialisation
        ``"torch"`` initialises the classifier like ``nn.Linear``. ``"small"`` starts it near zero: without a
        panel, models of other seeds then accept more of its counterfactuals, but under the robust loss most
        of its units die, which lowers the AUC.
    class_weight
        ``None``, ``"balanced"``, or a mapping from label to weight, for the accuracy loss of rare classes.
    threshold
        The probability above which a decision is favourable. It is part of the last bias, so that the sign
        of the logit is the decision.
    approval_rate
        Share of the training rows to accept, instead of a threshold. The threshold is then estimated by the
        panel (or a logistic regression) before training, and set exactly at the end.
    learning_rate, batch_size, epochs, clip_norm
        Settings of the optimiser (Adam). ``epochs=None`` takes 400 steps plus three for every two rows, up to
        2,500, and at least 12 epochs. Gradients longer than ``clip_norm`` are shortened to it.
    warmup, ramp
        Shares of the epochs without the robust loss, and then with a growing kappa and weight.
    validation_fraction, patience
        Share of the rows that is held out to choose the best epoch: the one with the lowest objective on them
        once kappa has its full value. Training stops after ``patience`` epochs without progress (``None``:
        never).
    keep_rows
        Number of encoded training rows that the model keeps and saves: ``explain`` uses them as starts and
        prototypes. With 0, a saved model contains nobody's data, and ``explain`` has the generator alone.
    device
        Device of the training: ``"cpu"``, ``"cuda"``, ... The fitted model is on the CPU.
    random_state
        Seed of all random choices; the same seed gives the same model, bit for bit, on one machine.
    verbose
        1 shows a progress bar with loss, accuracy, validity and certified rate.

    Attributes
    ----------
    classes_, schema_, encoding_
        The labels, the schema, and the map between table and tensor.
    panel_
        The fitted panel, or None.
    threshold_
        The probability above which decisions are favourable: as given, or set by ``approval_rate``.
    classifier_
        Plain ``nn.Sequential`` of Linear and (Leaky)ReLU in float64, one logit: above 0 means favourable.
    history_
        A DataFrame with a row for each epoch: losses, accuracy, validity, certified rate, proximity, ...
    best_epoch_, stopped_
        The epoch that was restored, counted from 1, and the reason why training ended.
    interrupted_
        True if Ctrl-C ended ``fit``; not saved.

    >>> import veritracer as vt
    >>> data = vt.datasets.load("breast_cancer")
    >>> model = VeriTraCER(schema=data.schema, method="standard", epochs=60).fit(data.X, data.y)
    >>> model.predict(data.X.head(2)).tolist()
    ['malignant', 'malignant']
    """

    update_: UpdateReport
    """The report of the update that made this estimator; absent if none did."""
    _saved_settings: TrainingConfig | None = None
    """The settings of a loaded model, until it is fitted again."""

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
        radius: str | float | None = None,
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
        """Train on raw rows and labels; Ctrl-C stops after the batch and keeps the best epoch."""
        self._saved_settings = None
        data = self._prepare(X, y, [self._seed()], [[]], self.schema, sample_weight)
        return self._adopt(self._train(data, [self._seed()]), data, 0, X)

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
        """Return a fitted estimator for each seed, all trained at once in one batched run.

        Parameters
        ----------
        leave_out
            For each seed, the positions of rows that neither the model nor its panel may see.
        share_panel
            Fit one panel, from the first seed, for all models. This is faster, but the models are then less
            independent of each other; it excludes ``leave_out``.
        checkpoint
            File that is written during the run, and from which an interrupted run continues.
        """
        streams = [int(seed) for seed in seeds]
        left_out = [[] for _ in streams] if leave_out is None else list(leave_out)
        if len(left_out) != len(streams) or not streams:
            received = f"{len(left_out)} for {len(streams)} seeds"
            remedy = "pass as many of both"
            raise TrainingError(message("seeds, and one leave_out for each", received, remedy))
        if share_panel and leave_out is not None:
            remedy = "omit share_panel: a shared panel would have seen the rows that each model leaves out"
            raise TrainingError(message("a panel for each model", "share_panel with leave_out", remedy))
        self._saved_settings = None
        data = self._prepare(X, y, streams, left_out, self.schema, sample_weight)
        at = None if checkpoint is None else Checkpoint(checkpoint)
        trained = self._train(data, streams, share_panel=share_panel, checkpoint=at)
        models = [type(self)(**{**self.get_params(deep=False), "random_state": seed}) for seed in streams]
        return [model._adopt(trained, data, index, X) for index, model in enumerate(models)]

    def continue_fit(self, X: Any, y: ArrayLike) -> Self:
        """Return a copy that is trained further, with its own losses, on other rows.

        Classifier and generator continue to learn together for 20 epochs, at a fifth of the learning rate and
        without a warm-up, like the fine-tuning in the paper. The encoding stays the same. ``update``
        fine-tunes the classifier alone, and keeps promises.
        """
        check_is_fitted(self, "classifier_")
        seed = self._seed()
        data = self._prepare(X, y, [seed], [[]], self.encoding_.schema, encoding=self.encoding_)
        start = [(from_module(self.classifier_)[1], self.generator_theta_)]
        trained = self._train(data, [seed], config=recipes.continued(self.settings_), start=start)
        return type(self)(**self.get_params(deep=False))._adopt(trained, data, 0, X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted label of each row."""
        favourable = self.decision_function(X) > 0
        column = self._favourable_column()
        predicted: NDArray[Any] = self.classes_[np.where(favourable, column, 1 - column)]
        return predicted

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each label, (rows, 2), in the order of ``classes_``."""
        logit = torch.from_numpy(self.decision_function(X)) + threshold_logit(self.threshold_)
        favourable = torch.sigmoid(logit).numpy()
        pair = np.stack([1 - favourable, favourable], -1)
        return pair if self._favourable_column() == 1 else pair[:, ::-1].copy()

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the logit of each row: above 0 means favourable."""
        check_is_fitted(self, "classifier_")
        return self.logits(self._encode(X)).numpy()

    def logits(self, x: Tensor) -> Tensor:
        """Return the logit of encoded rows (n, d): with two outputs, the second minus the first."""
        network, theta = from_module(self.classifier_)
        with torch.no_grad():
            return network.logit(theta, x.to(theta[0]))

    def propose(self, X: Any) -> pd.DataFrame:
        """Return the generator's counterfactual for each row as raw values, neither refined nor certified."""
        return self.encoding_.decode(self.propose_encoded(self._encode(X)), original=as_table(X))

    def propose_encoded(self, x: Tensor, *, random_state: int | None = None) -> Tensor:
        """Return the generator's counterfactuals of encoded rows (n, d), projected onto legal rows.

        With ``random_state``, a generator that samples categories in training samples them here too;
        otherwise it takes the most likely ones.
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
        """Find a certified counterfactual near each row; ``Recourse.explain`` describes the options.

        The search starts from the generator's proposal, or from training rows if there is no generator or if
        its proposal cannot be certified. The certificate is for exactly the values that are shown.
        """
        check_is_fitted(self, "classifier_")
        return self.recourse()._explain(self._checked(X), options)

    @takes(IssueOptions)
    def issue(self, X: Any, options: IssueOptions) -> Issued:
        """Explain ``X``, and write every certified counterfactual to the ledger as a promise.

        The options are those of ``explain``, and the terms of the promises:

        Parameters
        ----------
        ids
            Identifiers of the applicants, one for each row.
        ledger
            A ``Ledger``, its path, or the URL of its database.
        expires
            Duration or last day of the promises, the end of the ``term`` by default. A shorter duration
            shortens the term; None, for promises without an end, needs a schema without ``yearly``.
        original
            Storage of people's own rows: ``"plain"``, ``"encrypted"`` with ``key``, or a ``"commitment"``.
        uncertified
            ``"skip"`` counterfactuals without a certificate, or ``"promise"`` what was proved of them.
        allow_duplicate
            Promise again if the same application has a live promise already.
        key, now
            Key of encrypted rows, and the date of the promises (now by default).

        Returns
        -------
        Issued
            The promises, with the numbers of rows that got none. See ``Ledger.issue``.
        """
        from veritracer.ledger import open_ledger

        check_is_fitted(self, "classifier_")
        end = options.end
        found = self.recourse()._explain(self._checked(X), options.of_explain())
        with open_ledger(options.ledger) as place:
            issued = place.issue(
                found,
                self.classifier_,
                ids=options.ids,
                threshold=self.threshold_,
                expires=end,
                now=options.now,
                original=options.original,
                key=options.key,
                uncertified=options.uncertified,
                allow_duplicate=options.allow_duplicate,
            )
        return replace(issued, recourse=found)

    def update(
        self,
        X: Any,
        y: ArrayLike,
        *,
        keep: Ledger | str | os.PathLike[str] | None = None,
        epochs: int = EPOCHS,
        learning_rate: float | None = None,
        panel: Literal["keep", "refit"] | None = "keep",
        **options: Any,
    ) -> Self:
        """Return a copy that is fine-tuned on new rows and keeps the promises in ``keep``.

        The classifier learns by cross-entropy inside the sets of all live promises; encoding, schema and
        generator stay the same. ``update_`` compares the result with a free update and with training from
        scratch.

        Parameters
        ----------
        keep
            A ledger, its path or its URL; None keeps no promises.
        epochs, learning_rate
            Settings of fine-tuning; the learning rate is a fifth of that of training by default.
        panel
            ``"keep"`` goes on with the present panel; ``"refit"`` fits one to the new rows, for many rows
            whose labels have a new meaning; None updates without a panel, and the result has none.
        penalty, least_kappa
            Weight of a hinge loss on promises that no set protects: valid on their day only, conditional,
            proved only below ``least_kappa``, or made by a model with another encoding, threshold or
            architecture.
        max_loss, allow_broken
            Raise ``PromiseError`` if keeping the promises costs more accuracy than ``max_loss`` (None: any)
            compared with the better of a free update and training from scratch, or if it breaks more than
            ``allow_broken`` promises that are kept today.
        held_out, compare
            Share of the new rows that is held out for the comparison, and whether training from scratch and
            releasing promises are tried too.
        at
            Keep the promises that are live at this time; None is now.
        """
        from veritracer.ledger.update import update

        check_is_fitted(self, "classifier_")
        options |= {"keep": keep, "epochs": epochs, "learning_rate": learning_rate, "panel": panel}
        return update(self, (X, y), self._encode(X), random_state=self._seed(), **options)

    def fine_tuning(self, **changes: Any) -> dict[str, Any]:
        """Return the options of ``fine_tune`` that suit this model, with these changes."""
        return {
            "learning_rate": FINE_TUNE_LR_FACTOR * self.settings_.learning_rate,
            "batch_size": self.settings_.batch_size,
            "threshold": self.threshold_,
            **changes,
        }

    def recourse(self, schema: Schema | None = None) -> Recourse:
        """Return the ``Recourse`` behind ``explain``; another ``schema`` changes what people may change."""
        check_is_fitted(self, "classifier_")
        return Recourse(
            self.classifier_,
            schema,
            self.encoding_,
            kappa=self.settings_.kappa,
            norm=self.norm,
            radius=self.settings_.radius,
            propose=None if self.generator_ is None else self.propose_encoded,
            reference=ReferenceData(
                self.neighbours_, self.panel_, self.quantile_bounds_, threshold_logit(self.threshold_)
            ),
            threshold=self.threshold_,
        )

    def certify(
        self,
        X: Any,
        X_cf: Any,
        *,
        kappa: float | None = None,
        effort: Effort = "fast",
        time_budget: float | None = None,
    ) -> Certificates:
        """Certify counterfactuals from any source; both tables have raw values.

        ``veritracer.certify`` describes ``effort`` and ``time_budget``.
        """
        check_is_fitted(self, "classifier_")
        tables = self._checked(X), self._checked(X_cf)
        return self.recourse().certify(*tables, kappa=kappa, effort=effort, time_budget=time_budget)

    def param_set(self, kappa: float | None = None) -> ParamSet:
        """Return the set of models around this one that its certificates cover."""
        check_is_fitted(self, "classifier_")
        kappa = self.settings_.kappa if kappa is None else kappa
        return ParamSet.around(self.classifier_, kappa, self.norm, self.settings_.radius)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model as a folder of safetensors and JSON, atomically."""
        check_is_fitted(self, "classifier_")
        from veritracer.persistence import save  # persistence imports this class to load models

        save(self, folder)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; an unknown one raises an error with a suggestion."""
        names = self._get_param_names()
        for name in params:
            if name.split("__")[0] not in names:
                raise ValueError(unknown_name("a parameter of VeriTraCER", name, names))
        super().set_params(**params)
        return self

    def _prepare(
        self,
        X: Any,
        y: ArrayLike,
        seeds: list[int],
        leave_out: Sequence[ArrayLike],
        schema: Schema | None,
        sample_weight: ArrayLike | None = None,
        encoding: Encoding | None = None,
    ) -> TrainingData:
        """Return the rows, encoded and split as configured."""
        config = self.settings_
        return prepare(
            X,
            y,
            schema=schema,
            favourable=self.favourable if encoding is None else None,
            sample_weight=sample_weight,
            class_weight=self.class_weight,
            validation_fraction=config.validation_fraction,
            validation_seeds=seeds if config.validation == "random" else None,
            leave_out=leave_out,
            device=self.device,
            encoding=encoding,
        )

    def _train(
        self, data: TrainingData, seeds: list[int], *, config: TrainingConfig | None = None, **options: Any
    ) -> TrainedModels:
        """Train a model for each seed, with a default panel if both recipe and method use one."""
        panel = self.panel
        if panel == "default":
            panel = Panel() if self.method == "veritracer" and self.recipe is None else None
        return fit_models(
            config or self.settings_,
            data,
            seeds,
            panel=panel,
            threshold=self.threshold,
            approval_rate=self.approval_rate,
            verbose=bool(self.verbose),
            **options,
        )

    def _adopt(self, trained: TrainedModels, data: TrainingData, index: int, X: Any) -> Self:
        """Set the learned attributes from model ``index`` of the run, and return the estimator."""
        encoding = data.encoding
        self.schema_, self.encoding_ = encoding.schema, encoding
        self.classes_ = encoding.schema.classes
        self.rate_threshold_ = trained.thresholds[index] if trained.thresholds else None
        self.classifier_ = to_module(trained.network, trained.theta[index]).eval()
        panels = trained.panels
        self.panel_: Panel | None = panels[min(index, len(panels) - 1)] if panels else None
        self.generator_: Generator | None = trained.generator
        self.generator_theta_ = trained.generator_theta[index]
        self.history_ = pd.DataFrame(trained.history[index])
        self.best_epoch_, self.stopped_ = trained.best_epoch[index], trained.stopped
        self.interrupted_ = trained.interrupted
        x, favourable = data.rows.seen(index)
        self.quantile_bounds_: QuantileBounds | None = QuantileBounds.of(encoding, x, favourable)
        labelled = subsample(torch.cat([x, favourable.to(x).unsqueeze(-1)], -1), self.keep_rows)
        self.neighbours_ = Neighbours(labelled[:, :-1], labelled[:, -1] > 0.5)
        ignored = encoding.schema.ignored_names
        named = [c for c in X.columns if c not in ignored] if isinstance(X, pd.DataFrame) else None
        self.describe_inputs(named)
        return self

    @property
    def threshold_(self) -> float:
        """The probability above which decisions are favourable: as given, or set by ``approval_rate``."""
        if self.approval_rate is None or self.rate_threshold_ is None:
            return self.threshold
        return self.rate_threshold_

    def _encode(self, X: Any) -> Tensor:
        return self.encoding_.encode(self._checked(X))

    def _checked(self, X: Any) -> Any:
        """Return the table; refuse an array of the wrong shape with scikit-learn's wording."""
        table = as_table(X)
        width = self.n_features_in_
        if isinstance(table, np.ndarray) and table.ndim == 2 and table.shape[1] != width:
            received = (
                f"X has {table.shape[1]} features, but VeriTraCER is expecting {width} features as input"
            )
            raise DataError(message(f"{width} columns", received, "pass the columns that fit() was given"))
        if isinstance(table, np.ndarray) and table.ndim == 1:
            remedy = "Reshape your data: pass one row as [[...]]"
            raise DataError(message(f"a table with {width} columns", "one dimension", remedy))
        return table

    def describe_inputs(self, columns: list[str] | None) -> None:
        """Set the attributes that scikit-learn expects about the inputs."""
        self.n_features_in_ = len(self.encoding_.schema)
        self.feature_names_in_ = None if columns is None else np.array(columns, dtype=object)

    @property
    def settings_(self) -> TrainingConfig:
        """All settings of training, checked: as given, else from the recipe, else the library's own."""
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

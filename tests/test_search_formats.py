"""Models for search engines, evaluated as the engines document and implement it.

No server is run here: the evaluators below do what the parsers and trees of the plugins and of
Vespa's importer do.
"""

from __future__ import annotations

import json
import math

import lightgbm
import numpy as np
import pandas as pd
import pytest

from greedymiser import (
    CostModel,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    load,
    save,
    to_lightgbm,
    to_ltr,
    to_vespa,
    to_xgboost,
)

NAMES = ["bm25(title)", "bm25(body)", "attribute(price)", "freshness(time).logscale"]
QID = np.repeat(np.arange(30), 10)


@pytest.fixture(scope="module")
def frame():
    """Scores of queries: many zeros, few values, so that many of them are thresholds."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.random((300, 4)).round(1) * 9, columns=NAMES, dtype=np.float32)
    return X.where(rng.random(X.shape) > 0.3, 0.0)


@pytest.fixture(scope="module")
def target(frame):
    return np.clip((frame[NAMES[0]] / 3 + (frame[NAMES[2]] > 4)).round(), 0, 4).to_numpy()


@pytest.fixture(scope="module")
def model(frame, target):
    costs = CostModel(dict(zip(NAMES, [1.0, 50.0, 1.0, 50.0], strict=True)))
    ranker = MiserRanker(costs, tradeoff=1e-3, max_iter=20, max_depth=3, n_jobs=1)
    ranker.fit(frame, target, qid=QID)
    assert ranker.features_used_ == [NAMES[0], NAMES[2]]
    return ranker


def feature(name, **more):
    return {"name": name, "params": ["words"], "template": {"match": {"f": "{{words}}"}}, **more}


FEATURES = [feature(name) for name in reversed(NAMES)]


def rows_at_thresholds(model, n=500):
    """Rows whose values are thresholds, next to them, or 0, in float32."""
    nodes = model.predictor_.stages[0].ensemble.nodes
    cuts = nodes["threshold"][nodes["feature"] >= 0].astype(np.float32)
    beside = [np.nextafter(cuts, np.float32(side)) for side in (-math.inf, math.inf)]
    pool = np.concatenate([cuts, *beside, np.float32([0, 9])])
    shape = (n, model.predictor_.n_features)
    return np.random.default_rng(1).choice(pool, shape).astype(np.float32)


# OpenSearch and Elasticsearch


SPLIT = {"nodeid", "depth", "split", "split_condition", "yes", "no", "missing", "children"}


def plugin_score(trees, row):
    """What the plugin's parser demands, and what its trees do; ``row`` is by name, in float32."""
    total = np.float32(0)
    for node in trees:
        while "leaf" not in node:
            assert node.keys() == SPLIT
            left, right = node["children"]
            assert (left["nodeid"], right["nodeid"]) == (node["yes"], node["no"])
            assert node["missing"] in (node["yes"], node["no"])
            value, threshold = row[node["split"]], np.float32(node["split_condition"])
            if np.isnan(value):
                node = left if node["missing"] == node["yes"] else right
            else:
                node = left if threshold > value else right
        assert node.keys() == {"nodeid", "leaf"}
        total += np.float32(node["leaf"])
    return total


def plugin_scores(bodies, X, names):
    definition = bodies.model["model"]["model"]
    assert definition["type"] == "model/xgboost+json"
    trees = json.loads(definition["definition"], parse_constant=pytest.fail)
    # The plugin computes the features of the set, and knows no others.
    known = {each["name"] for each in bodies.feature_set["featureset"]["features"]}
    rows = [{n: x for n, x in zip(names, row, strict=True) if n in known} for row in X]
    return np.array([plugin_score(trees, row) for row in rows])


def test_a_ranker_in_the_plugin(model):
    bodies = to_ltr(model, FEATURES, name="shop")
    assert bodies.model["model"]["name"] == "shop"
    X = rows_at_thresholds(model)
    scores = plugin_scores(bodies, X, NAMES)
    expected = model.predict(pd.DataFrame(X, columns=NAMES))
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_only_features_in_use_are_computed(model):
    kept = to_ltr(model, FEATURES).feature_set["featureset"]["features"]
    assert kept == [FEATURES[1], FEATURES[3]]  # in their order, as they were given
    body = {"featureset": {"name": "all", "features": FEATURES}}
    assert to_ltr(model, body) == to_ltr(model, FEATURES) == to_ltr(model, body["featureset"])


def test_features_that_others_are_derived_from_are_kept(model):
    derived = feature(NAMES[0], template_language="derived_expression", template="raw * log_of")
    chain = feature("log_of", template_language="derived_expression", template="ln(deep + 1)")
    others = [feature(name) for name in ("raw", "deep", "unused", "ln")]
    others[2]["template"] = {"match": {"raw": "deep"}}
    kept = to_ltr(model, [feature(NAMES[2]), derived, chain, *others]).feature_set
    names = [each["name"] for each in kept["featureset"]["features"]]
    assert names == [NAMES[2], NAMES[0], "log_of", "raw", "deep", "ln"]


def test_the_plugin_is_given_what_xgboost_dumps(model):
    """The same trees as those that XGBoost itself writes for the plugin."""
    xgboost = pytest.importorskip("xgboost")
    booster = xgboost.Booster(model_file=bytearray(to_xgboost(model), "utf-8"))
    ours = json.loads(to_ltr(model, FEATURES).model["model"]["model"]["definition"])
    theirs = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    assert len(ours) == len(theirs) == 20
    assert_same_trees(ours, theirs)


def assert_same_trees(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"children", "leaf", "split_condition"}:
            assert mine[key] == other[key]
        for key in mine.keys() & {"leaf", "split_condition"}:
            assert mine[key] == pytest.approx(other[key], rel=1e-6)
        assert_same_trees(mine.get("children", []), other.get("children", []))


def test_missing_values_go_where_the_model_says(frame, target):
    X = frame.mask(np.random.default_rng(2).random(frame.shape) < 0.2)
    model = MiserRegressor(max_iter=10, n_jobs=1).fit(X, target)
    scores = plugin_scores(to_ltr(model, FEATURES), X.to_numpy(np.float32), NAMES)
    np.testing.assert_allclose(scores, model.predict(X), rtol=1e-5, atol=1e-5)


def test_columns_without_names_are_features_in_order(frame, target):
    X = frame.to_numpy()
    model = MiserClassifier(max_iter=5, n_jobs=1).fit(X, target > 1)
    scores = plugin_scores(to_ltr(model, [feature(name) for name in "abcd"]), X, "abcd")
    np.testing.assert_allclose(scores, model.decision_function(X), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="4 columns without names, and features has 3 entries"):
        to_ltr(model, [feature(name) for name in "abc"])


def test_what_the_plugin_has_no_place_for(model, frame, target):
    with pytest.raises(ValueError, match=r"features has no 'bm25\(title\)', which the model uses"):
        to_ltr(model, FEATURES[:-1])
    with pytest.raises(ValueError, match=r"features has 'attribute\(price\)' twice"):
        to_ltr(model, [*FEATURES, FEATURES[1]])
    with pytest.raises(TypeError, match="features must be a list of features, or a dict with"):
        to_ltr(model, {"featureset": "all"})
    with pytest.raises(ValueError, match="must be a dict with a name, got 'title'"):
        to_ltr(model, ["title"])
    with pytest.raises(ValueError, match="name must be a string that is not empty, got ''"):
        to_ltr(model, FEATURES, name="")
    with pytest.raises(ValueError, match="the model uses no feature"):
        to_ltr(model.truncate(0), FEATURES)
    exits = EarlyExitRanker(model, threshold=0.5, every=5).fit(frame, target, qid=QID)
    with pytest.raises(ValueError, match="the plugin has no early exits"):
        to_ltr(exits, FEATURES)
    three = MiserClassifier(max_iter=2).fit(frame, np.minimum(target, 2))
    with pytest.raises(ValueError, match="tells 3 classes apart, and a search engine ranks by"):
        to_ltr(three, FEATURES)
    labelled = frame.assign(**{NAMES[0]: pd.Categorical(frame[NAMES[0]] > 3)})
    coded = MiserRegressor(max_iter=2).fit(labelled, target)
    with pytest.raises(ValueError, match=r"feature 'bm25\(title\)' has categories, and features"):
        to_ltr(coded, FEATURES)


# Vespa


def vespa_score(dump, row, single):
    """As Vespa's importer turns a dump into an expression; ``row`` is by name."""
    number = np.float32 if single else float
    total = 0.0
    listed = [f for f in dump["feature_names"] if dump["feature_infos"].get(f, {}).get("values")]
    labels = dict(zip(listed, dump["pandas_categorical"], strict=True))
    for tree in dump["tree_info"]:
        node = tree["tree_structure"]
        while "left_child" in node:
            name = dump["feature_names"][node["split_feature"]]
            value, threshold = row[name], str(node["threshold"])
            if node["decision_type"] == "==":
                chosen = [labels[name][int(code)] for code in threshold.split("||")]
                left = value in chosen or (node["default_left"] and value != value)
            elif node["default_left"]:
                left = not number(value) >= number(threshold)
            else:
                left = number(value) < number(threshold)
            node = node["left_child"] if left else node["right_child"]
        total += node["leaf_value"]
    if dump["objective"].startswith("binary"):
        return 1 / (1 + math.exp(-total))
    return math.exp(total) if dump["objective"] in ("poisson", "gamma", "tweedie") else total


def vespa_scores(text, X, single=False):
    dump = json.loads(text, parse_constant=pytest.fail)
    return np.array([vespa_score(dump, row, single) for row in X.to_dict("records")])


@pytest.mark.parametrize("single", [False, True])
def test_a_ranker_in_vespa(model, single):
    """Also at the thresholds, whether Vespa compares in double or, for speed, in float."""
    files = to_vespa(model, schema="shop")
    X = pd.DataFrame(rows_at_thresholds(model), columns=NAMES)
    scores = vespa_scores(files["models/greedymiser.json"], X, single)
    np.testing.assert_allclose(scores, model.predict(X), rtol=1e-12)
    assert files["schemas/shop/greedymiser.profile"] == (
        "rank-profile greedymiser inherits default {\n"
        "    first-phase {\n"
        '        expression: lightgbm("greedymiser.json")\n'
        "    }\n"
        "}\n"
    )


def test_the_cheap_model_comes_first(model, tmp_path):
    cheap = model.truncate(3)
    save(cheap, tmp_path / "cheap.miser")
    files = to_vespa(model, load(tmp_path / "cheap.miser"), schema="shop", name="r", rerank_count=7)
    X = pd.DataFrame(rows_at_thresholds(model), columns=NAMES)
    for name, each in {"models/r.json": model, "models/r-first.json": cheap}.items():
        np.testing.assert_allclose(vespa_scores(files[name], X), each.predict(X), rtol=1e-12)
    assert files["schemas/shop/r.profile"] == (
        "rank-profile r inherits default {\n"
        "    first-phase {\n"
        '        expression: lightgbm("r-first.json")\n'
        "    }\n"
        "    second-phase {\n"
        "        rerank-count: 7\n"
        '        expression: lightgbm("r.json")\n'
        "    }\n"
        "}\n"
    )


@pytest.mark.parametrize("loss", ["log_loss", "poisson", "squared_error"])
def test_links_categories_and_gaps_in_vespa(frame, target, loss):
    rng = np.random.default_rng(3)
    kinds = rng.choice(["new", "used", "", "rare"], len(frame))
    X = frame.assign(kind=pd.Categorical(kinds)).mask(rng.random((len(frame), 5)) < 0.15)
    X["kind"] = X["kind"].astype("category")
    y = target + 2 * (kinds == "used") + X["kind"].isna()
    if loss == "log_loss":
        model = MiserClassifier(max_iter=15, min_samples_leaf=5, n_jobs=1).fit(X, y > 2)
        expected = model.predict_proba(X)[:, 1]
    else:
        model = MiserRegressor(loss=loss, max_iter=15, min_samples_leaf=5, n_jobs=1).fit(X, y)
        expected = model.predict(X)
    assert "kind" in model.features_used_
    text = to_vespa(model, schema="shop")["models/greedymiser.json"]
    rows = X.assign(kind=X["kind"].astype(object))
    np.testing.assert_allclose(vespa_scores(text, rows), expected, rtol=1e-9)
    strange = rows.assign(kind="never seen")
    expected = model.predict_proba(strange)[:, 1] if loss == "log_loss" else model.predict(strange)
    np.testing.assert_allclose(vespa_scores(text, strange), expected, rtol=1e-9)


def test_vespa_is_given_what_lightgbm_dumps(model):
    """The same keys at the same places, wherever Vespa looks."""
    text = to_vespa(model, schema="shop")["models/greedymiser.json"]
    ours = json.loads(text)
    theirs = lightgbm.Booster(model_str=to_lightgbm(model)).dump_model()
    assert ours.keys() <= theirs.keys()
    assert ours["feature_names"] == theirs["feature_names"]
    assert ours["objective"] == theirs["objective"]
    mine, other = (d["tree_info"][1]["tree_structure"] for d in (ours, theirs))
    assert mine.keys() - {"split_index"} <= other.keys()
    assert mine["split_feature"] == other["split_feature"]
    assert (mine["decision_type"], mine["default_left"]) == ("<=", other["default_left"])
    assert mine["threshold"] > other["threshold"]
    assert mine["threshold"] == pytest.approx(other["threshold"], rel=1e-6)


def test_what_vespa_has_no_place_for(model, frame, target):
    with pytest.raises(ValueError, match=r"schema must be a name .* got 'a b'"):
        to_vespa(model, schema="a b")
    with pytest.raises(ValueError, match=r"name must be a name .* got '\.\./x'"):
        to_vespa(model, schema="shop", name="../x")
    with pytest.raises(ValueError, match="rerank_count must be a whole number from 1 on, got 0"):
        to_vespa(model, schema="shop", rerank_count=0)
    three = MiserClassifier(max_iter=2).fit(frame, np.minimum(target, 2))
    with pytest.raises(ValueError, match="tells 3 classes apart, and Vespa ranks by one score"):
        to_vespa(three, schema="shop")
    nameless = MiserRegressor(max_iter=2).fit(frame.to_numpy(), target)
    with pytest.raises(ValueError, match="have no names, and Vespa computes features by their"):
        to_vespa(nameless, schema="shop")
    odd = MiserRegressor(max_iter=2).fit(frame.rename(columns={NAMES[0]: "the title"}), target)
    with pytest.raises(ValueError, match="'the title' is no rank feature of Vespa"):
        to_vespa(odd, schema="shop")
    coded = frame.assign(**{NAMES[0]: pd.Categorical((frame[NAMES[0]] > 3).astype(int))})
    numbers = MiserRegressor(max_iter=2).fit(coded, target)
    with pytest.raises(ValueError, match=r"the categories of .* must be text, without quotes"):
        to_vespa(numbers, schema="shop")
    exits = EarlyExitRanker(model, threshold=0.5, every=5).fit(frame, target, qid=QID)
    with pytest.raises(ValueError, match="Vespa has no early exits"):
        to_vespa(exits, schema="shop")

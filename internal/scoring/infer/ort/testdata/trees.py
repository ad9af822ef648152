# Writes ensembles of 100 random trees on 30 features: full ones of depth 6, as a
# boosting library makes them, for one number and for two classes; ones of 31
# leaves, where the leaf that is split is random; and a forest of 3 classes with
# 300 leaves in each tree, as scikit-learn makes it.
import os, sys

import numpy as np
import onnx
from onnx import TensorProto, helper

to = sys.argv[1]
random = np.random.default_rng(7)


class Trees:
    def __init__(self):
        self.nodes = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
        self.leaves = []

    def add(self, leaves, level_wise):
        tree = len(set(self.nodes["treeids"]))
        first = len(self.nodes["treeids"])
        open_leaves = [self.leaf(tree, 0)]
        for _ in range(leaves - 1):
            at = open_leaves.pop(0 if level_wise else int(random.integers(len(open_leaves))))
            self.nodes["modes"][at] = "BRANCH_LEQ"
            self.nodes["featureids"][at] = int(random.integers(30))
            self.nodes["values"][at] = float(np.float32(random.normal()))
            for side in "truenodeids", "falsenodeids":
                child = self.leaf(tree, len(self.nodes["treeids"]) - first)
                self.nodes[side][at] = child - first
                open_leaves.append(child)
        self.leaves += [(tree, at - first) for at in open_leaves]

    def leaf(self, tree, node):
        for key, value in dict(treeids=tree, nodeids=node, featureids=0, values=0.0, modes="LEAF", truenodeids=0, falsenodeids=0).items():
            self.nodes[key].append(value)
        return len(self.nodes["treeids"]) - 1

    def attributes(self, votes, targets):
        weights = [(tree, node, target) for tree, node in self.leaves for target in targets(tree)]
        set = {f"nodes_{key}": value for key, value in self.nodes.items()}
        set[f"{votes}_treeids"] = [w[0] for w in weights]
        set[f"{votes}_nodeids"] = [w[1] for w in weights]
        set[f"{votes}_ids"] = [w[2] for w in weights]
        set[f"{votes}_weights"] = [float(np.float32(v)) for v in random.normal(size=len(weights))]
        return set


def save(name, op, outputs, **attributes):
    node = helper.make_node(op, ["x"], [port.name for port in outputs], domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 30])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(helper.make_graph([node], name, [x], outputs), opset_imports=opsets, ir_version=9), os.path.join(to, name + ".onnx"))


def regressor(name, leaves, level_wise):
    trees = Trees()
    for _ in range(100):
        trees.add(leaves, level_wise)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])
    save(name, "TreeEnsembleRegressor", [y], n_targets=1, **trees.attributes("target", lambda tree: [0]))


def classifier(name, leaves, level_wise, classes, targets, post):
    trees = Trees()
    for _ in range(100):
        trees.add(leaves, level_wise)
    outputs = [helper.make_tensor_value_info("label", TensorProto.INT64, [None]), helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, classes])]
    save(name, "TreeEnsembleClassifier", outputs, classlabels_int64s=list(range(classes)), post_transform=post, **trees.attributes("class", targets))


regressor("full", 64, True)
classifier("binary", 64, True, 2, lambda tree: [0], "LOGISTIC")
classifier("boosted", 31, False, 3, lambda tree: [tree % 3], "SOFTMAX")
regressor("uneven", 31, False)
classifier("forest", 300, False, 3, lambda tree: [0, 1, 2], "NONE")

"""torchmetrics: metrics of classification, regression, images, retrieval and clustering, over several updates."""

import pytest
import torch

from . import agree, library

metrics = library("torchmetrics")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")
CLASSES = {"task": "multiclass", "num_classes": 5}


def scores():
    return torch.randn(40, 5).softmax(1), torch.randint(0, 5, (40,))


def images():
    return torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32)


def numbers():
    return torch.randn(40), torch.randn(40)


def labels():
    return torch.randint(0, 5, (40,)), torch.randint(0, 4, (40,))


def ranked():
    return torch.rand(40), torch.randint(0, 2, (40,)), torch.arange(40) // 10


METRICS = {
    "accuracy": (lambda: metrics.Accuracy(**CLASSES), scores),
    "top2": (lambda: metrics.Accuracy(**CLASSES, top_k=2), scores),
    "f1": (lambda: metrics.F1Score(**CLASSES, average="macro"), scores),
    "auroc": (lambda: metrics.AUROC(**CLASSES), scores),
    "average_precision": (lambda: metrics.AveragePrecision(**CLASSES, thresholds=20), scores),
    "confusion": (lambda: metrics.ConfusionMatrix(**CLASSES), scores),
    "calibration": (lambda: metrics.CalibrationError(**CLASSES), scores),
    "kappa": (lambda: metrics.CohenKappa(**CLASSES), scores),
    "mse": (lambda: metrics.MeanSquaredError(), numbers),
    "pearson": (lambda: metrics.PearsonCorrCoef(), numbers),
    "spearman": (lambda: metrics.SpearmanCorrCoef(), numbers),
    "r2": (lambda: metrics.R2Score(), numbers),
    "psnr": (lambda: library("torchmetrics.image").PeakSignalNoiseRatio(data_range=1.0), images),
    "ssim": (lambda: library("torchmetrics.image").StructuralSimilarityIndexMeasure(data_range=1.0), images),
    "ndcg": (lambda: library("torchmetrics.retrieval").RetrievalNormalizedDCG(), ranked),
    "rand": (lambda: library("torchmetrics.clustering").RandScore(), labels),
    "mutual_information": (lambda: library("torchmetrics.clustering").NormalizedMutualInfoScore(), labels),
}


@pytest.mark.parametrize("name", METRICS)
def test_agrees(name):
    make, draw = METRICS[name]

    def run(device):
        metric = make().to(device)
        for _ in range(3):
            metric.update(*(x.to(device) for x in draw()))
        return metric.compute()

    agree(run, tolerance=1e-4)

"""Keras on its torch backend, which takes mps by itself: fit, evaluate and predict, convolutional and recurrent."""

import os

import numpy as np
import pytest
import torch

from . import agree, library

os.environ["KERAS_BACKEND"] = "torch"
keras = library("keras")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")


def convolutional():
    layers = keras.layers
    return [
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
    ]


def recurrent():
    layers = keras.layers
    return [layers.Reshape((8, 8)), layers.LSTM(8, return_sequences=True), layers.GRU(8), layers.Dense(3, "softmax")]


@pytest.mark.parametrize("build", [convolutional, recurrent])
def test_fits(build):
    draw = np.random.default_rng(0)
    images = draw.standard_normal((32, 8, 8, 1)).astype("float32")
    labels = (images.mean((1, 2, 3)) > 0).astype("int64")

    def run(device):
        with keras.device(str(device)):
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.layers.Input((8, 8, 1)), *build()])
            weights = [draw_like(w) for w in model.get_weights()]
            model.set_weights(weights)
            model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
            history = model.fit(images, labels, epochs=4, batch_size=8, shuffle=False, verbose=0).history
            assert next(iter(model.parameters())).device.type == device.type
            return history["loss"], model.evaluate(images, labels, verbose=0), model.predict(images, verbose=0)

    agree(run)


def draw_like(weight):
    """The layers draw their first weights on their device: these are the same on both."""
    drawn = np.random.default_rng(weight.size).standard_normal(weight.shape).astype("float32") * 0.1
    return drawn if weight.ndim > 1 else np.abs(drawn)  # variances among the vectors


def test_the_default_device_is_mps():
    assert keras.ops.ones(3).device == torch.device("mps:0")

"""What the documents that people start from ask them to type: it works, and not a word goes to stderr."""

import pathlib

import pytest

SEEDS = pathlib.Path(__file__).parents[1] / "seeds"
pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps")]


@pytest.fixture
def seed(run_python):
    """Runs a seed, checks that it succeeded without a warning, and returns its stdout."""

    def run(name: str, **env: str | None) -> str:
        done = run_python(SEEDS / name, env={"PYTHONWARNINGS": "default", "PYTORCH_ENABLE_MPS_FALLBACK": None, **env})
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


def test_verify_script(seed):
    assert seed("verify.py") == "tensor([1.], device='mps:0')\n"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "available"),
        ({"VK_DRIVER_FILES": "/nonexistent.json", "VK_ICD_FILENAMES": "/nonexistent.json"}, "built, but"),
        ({"ANYMPS_DISABLE": "1"}, "this PyTorch was not built with MPS"),
    ],
    ids=["device", "no driver", "not built"],
)
def test_three_way_availability(seed, env, message):
    assert seed("availability.py", **env).startswith(message)


def test_verify_script_without_a_device(seed):
    assert seed("verify.py", ANYMPS_DISABLE="1") == "MPS device not found.\n"


def test_first_steps(seed):
    assert seed("first_steps.py").splitlines() == [
        "tensor([2., 2., 2., 2., 2.], device='mps:0')",
        "torch.Size([1]) mps:0 mps:0",
    ]


def test_device_idiom(seed):
    assert seed("device_idiom.py") == "mps mps mps\n"
    assert seed("device_idiom.py", ANYMPS_DISABLE="1") == "cpu cpu cpu\n"


def test_simple_cnn(seed):
    on_mps, on_cpu = (line.split() for line in seed("simple_cnn.py").splitlines())
    assert (on_mps[0], on_cpu[0]) == ("mps", "cpu")
    losses = [float(x) for x in on_mps[1:]]
    assert losses == pytest.approx([float(x) for x in on_cpu[1:]], abs=1e-4)
    assert losses[-1] < losses[0]

"""Stable-Baselines3: DQN explores by the CPU's random numbers and learns the same on both; PPO and SAC learn on mps."""

import pytest
import torch

from . import agree, library

baselines, gymnasium = library("stable_baselines3"), library("gymnasium")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def test_dqn():
    def run(device):
        environment = gymnasium.make("CartPole-v1")
        model = baselines.DQN(
            "MlpPolicy",
            environment,
            seed=0,
            learning_starts=20,
            train_freq=4,
            policy_kwargs={"net_arch": [16]},
            device=device,
        )
        model.learn(60)
        observations = torch.linspace(-1, 1, 20, device=device).view(5, 4)
        return model.q_net(observations).detach(), list(model.q_net.parameters())

    agree(run)


def test_ppo(mps):
    model = baselines.PPO(
        "MlpPolicy", gymnasium.make("CartPole-v1"), seed=0, n_steps=32, batch_size=16, n_epochs=2, device=mps
    )
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(64)
    assert model.device.type == "mps"
    moved = [not torch.equal(a, b) for a, b in zip(before, model.policy.parameters())]
    assert all(moved) and all(parameter.isfinite().all() for parameter in model.policy.parameters())


def test_sac_and_its_checkpoint(mps, tmp_path):
    model = baselines.SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=0, learning_starts=10, device=mps)
    model.learn(16)
    model.save(tmp_path / "sac.zip")
    observation = model.get_env().reset()
    agree(
        lambda device: baselines.SAC.load(tmp_path / "sac.zip", device=device).predict(observation, deterministic=True)[
            0
        ]
    )

"""What must not be in a bug report."""

import pytest

from deploy.store.redaction import HIDDEN, Redaction, secrets_in

redact = Redaction(["s3cr3t-value"], {"box1": "HOST", "ann": "USER"})


@pytest.mark.parametrize(
    "text",
    [
        "--api-key KEPT",
        "--api-key=KEPT",
        '"--api-key",\n "KEPT"',
        "'api_key': ['KEPT']",
        '"HF_TOKEN": "KEPT"',
        "HF_TOKEN=KEPT NCCL_DEBUG=INFO",
        "Authorization: Bearer KEPTKEPTKEPT",
        "http://user:KEPT@host/",
        "password=KEPT,",
        "found hf_KEPTKEPTKEPT here",
        "prompt: 'a \\'KEPT\\' b', params: x",
        'prompt: "KEPT", params: x',
        "my_secret: KEPT",
        "AWS_SECRET_ACCESS_KEY=KEPT",
        "SERVICE_ACCESS_KEY=KEPT",
    ],
)
def test_secrets_and_prompts_go(text: str) -> None:
    cleaned = redact(text)
    assert "KEPT" not in cleaned
    assert HIDDEN in cleaned
    assert cleaned.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192",
        "prompt_tokens: 12",
        "tokenizer='/models/tiny'",
        "eos_token_id=3",
        "the token was refused",
        '"--api-key", "${env:VLLM_API_KEY}"',
        "GPU KV cache size: 88,064 tokens, Maximum concurrency",
        "'api_key': None",
        "a banner of boxes",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_known_values_and_names_go_wherever_they_stand() -> None:
    assert redact("xs3cr3t-valuex on box1 of ann") == f"x{HIDDEN}x on HOST of USER"


def test_secrets_of_an_environment_are_known_by_their_names() -> None:
    found = secrets_in({"HF_TOKEN": "one", "OPENAI_API_KEY": "two", "VLLM_MAX_TOKENS": "8", "PATH": "/bin"})
    assert found == ["one", "two"]

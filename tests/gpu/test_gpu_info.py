"""What cuDNN says of the real GPU, beside the description that plans without a GPU are made from."""
import json

import pytest

from support import ROOT

WRITTEN = ROOT / "tests/worker/device/cuda/h200.json"
OF_THE_CARD = {"deviceName", "totalGlobalMem", "l2CacheSize", "memClockRateKHz", "smClockRateKHz", "multiProcessorCount", "pciDeviceId", "cudaDeviceId",
               "driverVer", "deviceVer"}


def test_properties_have_the_same_keys_and_types_as_the_written_ones(gpu, keep):
    keep("gpu-info", gpu)
    written = json.loads(WRITTEN.read_text())
    for card in gpu["gpus"]:
        real = card["properties"]
        print(f"\n{card['description']}")
        for key in sorted(written.keys() | real.keys()):
            if written.get(key) != real.get(key):
                print(f"  {key}: written {written.get(key, 'not at all')}, real {real.get(key, 'not at all')}")
        assert real.keys() == written.keys()
        assert {k: type(v) for k, v in real.items()} == {k: type(v) for k, v in written.items()}


def test_another_card_of_the_same_generation_differs_only_where_cards_do(gpu):
    written = json.loads(WRITTEN.read_text())
    real = gpu["gpus"][0]["properties"]
    if real["deviceVer"] != written["deviceVer"]:
        pytest.skip(f"this is no {written['deviceName']}, but {real['deviceName']} of another generation")
    assert {k for k in written if real[k] != written[k]} <= OF_THE_CARD

from paper.experiment import Order
from paper.tasks.toy_sweep import toy_fit_settings


def test_the_profile_shortens_and_the_order_decides():
    assert toy_fit_settings(Order("snelson", "map"), epochs=3000, lr=1.0) == {"epochs": 3000, "lr": 1.0}
    assert toy_fit_settings(Order("snelson", "map", "smoke"), epochs=3000)["epochs"] == 5
    order = Order("snelson", "map", "smoke", fit_settings={"epochs": 7})
    assert toy_fit_settings(order, epochs=3000) == {"epochs": 7}

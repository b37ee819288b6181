"""Counterfactual explanations whose promises are provable."""

"""Inference methods, one file each, behind one protocol."""

from fsvi.functions.divergences import Tempered
from fsvi.methods.base import Method
from fsvi.methods.duq import DUQ
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.fbnn import FBNN
from fsvi.methods.files import load
from fsvi.methods.fixed_mean import FixedMeanFSVI
from fsvi.methods.fmgp import FMGP
from fsvi.methods.fseb import FSEB
from fsvi.methods.fsvi import FSVI
from fsvi.methods.gfsvi import GFSVI
from fsvi.methods.ivon import IVON
from fsvi.methods.laplace import Laplace
from fsvi.methods.map import MAP
from fsvi.methods.mc_dropout import MCDropout
from fsvi.methods.mfvi import MFVI
from fsvi.methods.radial import RadialMFVI
from fsvi.methods.rank1 import Rank1
from fsvi.methods.registry import make_method, method_names
from fsvi.methods.sfsvi import SFSVI
from fsvi.methods.sngp import SNGP
from fsvi.methods.spg import SPG
from fsvi.methods.swag import SWAG
from fsvi.methods.vbll import VBLL
from fsvi.methods.vogn import VOGN
from fsvi.posteriors import Stds

__all__ = [
    "DUQ",
    "FBNN",
    "FMGP",
    "FSEB",
    "FSVI",
    "GFSVI",
    "IVON",
    "MAP",
    "MFVI",
    "SFSVI",
    "SNGP",
    "SPG",
    "SWAG",
    "VBLL",
    "VOGN",
    "Ensemble",
    "FixedMeanFSVI",
    "Laplace",
    "MCDropout",
    "Method",
    "RadialMFVI",
    "Rank1",
    "Stds",
    "Tempered",
    "load",
    "make_method",
    "method_names",
]

"""The full-tensor baselines: dense tensors under masks, with SET, SNFS, RigL, SRigL and S2ViTE.

Definitions follow the original implementations; each module names its source and where it had to
choose. Like `core`, nothing here knows a particular model: what is masked follows from the
unit-axis table. (`export` folds a value bias and `attention` replaces the attention of a module;
those two rely on the names of this package's models.)
"""

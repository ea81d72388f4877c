"""Where the analyses of a simulation run: in situ on its nodes or in transit on staging nodes.

Rules of the room: pure; stdlib, numpy and scipy, PuLP in ``exact_lp`` alone. It knows no other room.
The models are those of Honoré (2020, chapters 3 and 4), with the corrections that each module names.

==================  ==============================================================================
`application`       what there is: nodes, a simulation, its analyses; what is wrong with that
`times`             how long the phases of a step, a step and a whole run take
`closed_form`       real numbers of nodes and helper cores for a given split (Theorems 1 and 2)
`whole`             whole ones that fit memory (Algorithm 2), rounded
`many`              the best whole ones for many splits at once
`one_by_one`        Algorithm 1: analyses go in situ in one of five orders
`packs`             local search over moves and swaps
`bounds`            what no placement can be faster than
`exact`             Algorithm 3: the least step of all, by enumeration or by ``exact_lp``
`plan`              all of it by the name of a method
`view`              what a policy sees of coupled runs
`learner`           what analyses take, learned from samples
`replan`            the best split by what is known of a run now
==================  ==============================================================================
"""

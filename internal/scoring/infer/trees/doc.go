// Package trees evaluates ensembles of decision trees: random forests and boosted trees.
//
// Build checks a forest as a file describes it and packs it. A packed node has eight bytes and
// no pointer, and a row is compared with it without a branch. Read DESIGN.md of package infer
// for the layout and its reasons.
package trees

// Package gate judges a model version by the clauses of its recipe, which are CEL expressions.
package gate

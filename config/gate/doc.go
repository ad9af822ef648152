// Package gate judges a model version by the clauses of its recipe. The clauses are CEL
// expressions.
package gate

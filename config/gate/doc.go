// Package gate judges a version by its recipe's clauses, which are CEL.
package gate

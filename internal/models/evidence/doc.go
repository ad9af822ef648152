// Package evidence says how sure a comparison of two models is. Its bounds and e-values stay valid however often
// they are looked at: a decision may be taken at any moment, and a look costs nothing. All functions are pure.
package evidence

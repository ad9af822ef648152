// Package jsonscan finds where the values of a JSON document begin and end, without
// reading what is not wanted.
package jsonscan

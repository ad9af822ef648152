// Package cesql reads the CloudEvents SQL Expression Language, version 1.0, into
// a tree. It is pure: what an expression means for an event is the business of
// triggers/filter.
//
// Where the text of the specification and the grammar that the SDKs share
// disagree, the text counts: AND, OR and XOR have one precedence and are read
// from left to right, 4-1 is three, and what nobody can call is an error before
// the first event comes.
package cesql

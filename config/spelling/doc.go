// Package spelling tells how far a word is from one that is known, so that a slip
// of the hand can be answered with what was meant.
package spelling

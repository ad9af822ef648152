// Package curves makes learning curves of bounded size from the steps that a trainer has reported. The
// steps come from a file of any size, or from the progress of a live run. It keeps the extremes of each
// part of a curve, and reads its input once.
package curves

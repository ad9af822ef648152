// Package served tells which version of a model answers here: the champion, once
// it has been loaded and has answered its golden request, and until then the one
// before.
package served

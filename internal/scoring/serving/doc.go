// Package serving decides which version of a model answers in this process: the champion, after it
// has been loaded and has passed its golden request, and the previous champion until then.
package serving

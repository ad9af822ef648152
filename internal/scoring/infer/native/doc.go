// Package native is the engine for small graphs. A loaded program holds little more
// than its weights and answers in microseconds. Read DESIGN.md first.
package native

// Package registry registers versions of models, lets the gates judge them, and promotes
// them. It turns ends of runs and requests of people into facts; the order of the facts
// on the log decides. See DESIGN.md.
package registry

// Package lineage tells where a thing came from and what came of it: from a version
// of a model back to its run, data, code, node and cause, and from an event or a
// commit on to what was made of it.
//
// DESIGN.md tells where it looks, and what it leaves out.
package lineage

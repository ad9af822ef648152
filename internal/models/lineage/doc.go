// Package lineage traces causes and effects: from a version of a model back to its run, data, code,
// node and cause, and from an event or a commit forward to the runs and models that it led to.
//
// DESIGN.md describes its sources and its limits.
package lineage

// Package models is the wing of the judging loop. The registry registers the versions that runs
// make; evaluate computes their metrics; champions follows which version of each model is promoted.
// Lineage answers why a version or an answer exists, and erase removes all that belongs to a key.
package models

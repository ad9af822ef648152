// Package store keeps bytes: content-addressed objects, trees of them, the
// commits and branches of datasets, and what runs leave behind. It stands on
// gocloud.dev/blob: a folder, memory, or a bucket by its URL.
//
// DESIGN.md tells what lies where, and which races were thought through.
package store

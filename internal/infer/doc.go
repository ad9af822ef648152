// Package infer holds models ready to answer: the engine that suits each, as many
// in memory as a budget allows, the rest on the disk.
package infer

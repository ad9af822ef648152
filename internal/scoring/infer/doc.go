// Package infer keeps models ready to answer. It loads each into an engine that
// supports it, keeps as many in memory as a budget allows, and the rest on disk.
package infer

// Package show writes for people at a terminal: numbers, tables, harmless text, and the progress of what takes long.
package show

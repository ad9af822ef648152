// Package config reads Tidemill's one file: strict YAML, a file or a folder of
// files, with every problem told at once, each with its line, its path and the
// nearest known key. It also reads what never stands in that file: addresses,
// from flags and the environment, and secrets, from files of their own.
//
// It knows nothing of Kafka or Redis: a Config is what the user asked for,
// whole, with defaults filled in.
package config

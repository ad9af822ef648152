// Package config reads Tidemill's configuration: strict YAML from a file or a folder of
// files. It reports every problem with its line, its path and the nearest known key. It
// also reads the settings that must not be in the file: addresses from flags and the
// environment, and secrets from their own files.
//
// It knows nothing of Kafka or Redis. A Config is the user's whole configuration with
// the defaults filled in.
package config

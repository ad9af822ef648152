// Package sandboxtest is a child for tests of what uses package sandbox. It runs models by the Go engine,
// so the tests need no library, and it ends when a test wants it.
package sandboxtest

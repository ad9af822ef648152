// Package canary ends canaries: versions that answer a share of a model's events next to the champion. It compares their
// outcomes with those of the champion, and has the better one promoted.
package canary

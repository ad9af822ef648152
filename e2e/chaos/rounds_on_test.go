//go:build slow

package chaos

// allRounds makes every test of chaos play all its rounds, not only one storm.
const allRounds = true

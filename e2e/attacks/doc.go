// Package attacks starts the real binary with tokens of every role and attacks it from outside: its
// routes, its ports, its memory, and everything that it reads. After each attack the process must
// answer a healthy request, and its log must have no panic.
package attacks

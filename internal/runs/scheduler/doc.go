// Package scheduler requests runs, starts due attempts in the slots of their pools, and finds lost
// attempts. The log of facts decides whether each of these steps takes effect.
package scheduler

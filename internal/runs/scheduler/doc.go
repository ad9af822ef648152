// Package scheduler requests runs, starts due attempts in the slots of their pools, and
// finds lost attempts. The log of facts decides about each of these steps.
package scheduler

// Package local launches attempts on this machine: the agent works in this
// process, and only the user's command is a child, or a container.
//
// No command outlives the process that started it, though that is killed. Each
// child is killed by the kernel with its parent, where the kernel does that. A
// guard, a process of our own program, sees by its standard input that the
// launcher is no more, and kills the groups that it was told of, then every
// process that bears the launcher's cookie among its variables, and its
// containers. What even that has missed, for the guard was killed too, the next
// launcher of the folder ends when it opens. A process that has thrown its
// variables away and left its group is found by nobody.
package local

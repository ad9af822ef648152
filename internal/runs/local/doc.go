// Package local launches attempts on this machine: the agent works in this process, and only the
// user's command is a child, or a container.
//
// No command outlives the process that started it, even if that process is killed. On Linux, the
// kernel kills each child with its parent. A guard, a process of our own program, notices the
// launcher's end because its standard input closes. The guard then kills the process groups that
// the launcher reported, every process that has the launcher's cookie in its environment, and the
// launcher's containers. If the guard was killed too, the next launcher that opens the folder ends
// the remaining processes. A process that has cleared its environment and left its group remains.
package local

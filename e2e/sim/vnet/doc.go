// Package vnet is a network in memory whose hosts can be killed and whose links can fail. It runs in
// a testing/synctest bubble, because no goroutine of it waits for the operating system.
package vnet

// Package command says what a command of the command line is, and makes a program of many: their tree, flags,
// help and completion. A command is a struct whose fields are its flags. The package knows no command of Tidemill
// but help, completion and version.
package command

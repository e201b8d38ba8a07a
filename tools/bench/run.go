package main

import "errors"

func run([]string) (bool, error) { return false, errors.New("not there yet") }

package main

import (
	"slices"
	"testing"
)

// TestVariants checks that each mutant in a program with all of them does what it does in a program of its
// own, whatever the shape of its function is.
func TestVariants(t *testing.T) {
	b, p, all := openShapes(t)
	var alone, survivors []string
	for _, d := range all {
		r, err := b.test(p, d.mutant)
		if err != nil {
			t.Fatal(err)
		}
		if r != killed {
			survivors = append(survivors, d.String())
		}
		if d.variant == 0 {
			alone = append(alone, d.Before)
		}
	}
	if p.suites[0].program == "" {
		t.Error("the program with all mutants was not used")
	}
	// The values of variables lie outside of functions, and recover works in no copy.
	if want := []string{"6", "7", "recover() != nil", "*n += 4", "4"}; !slices.Equal(alone, want) {
		t.Errorf("built one by one: %q, want %q", alone, want)
	}
	if want := []string{"shapes.go:8: off by one: 6 -> 7"}; !slices.Equal(survivors, want) { // it changes nothing
		t.Errorf("survivors: %q, want %q", survivors, want)
	}
}

// openShapes returns the mutants of a package with functions of each shape, all in one program.
func openShapes(t *testing.T) (*bench, *target, []drawn) {
	t.Helper()
	b := openIn(t, "testdata/shapes")
	p := loadOne(t, b, ".")
	var all []drawn
	for _, m := range p.mutants {
		if p.check(m) == nil {
			all = append(all, drawn{p, m})
		}
	}
	combine(t, b, all)
	if b.variants == "" || len(all) < 20 {
		t.Fatal(b.variants, len(all))
	}
	return b, p, all
}

// combine puts mutants into one program.
func combine(t *testing.T, b *bench, all []drawn) {
	t.Helper()
	var changes []change
	for _, d := range all {
		changes = append(changes, d.change(d.mutant))
	}
	overlay, numbers, err := b.combine(changes)
	if err != nil {
		t.Fatal(err)
	}
	b.variants = overlay
	for i, d := range all {
		d.variant = numbers[i]
	}
}

// TestVariantsFail checks that mutants are built one by one if the program with all of them fails without
// one.
func TestVariantsFail(t *testing.T) {
	t.Setenv("SHAPES_FAILS", "1")
	b, p, all := openShapes(t)
	if r, err := b.test(p, all[3].mutant); r != killed || err != nil || p.suites[0].program != "" || all[3].variant == 0 {
		t.Errorf("%d, %v, %q, %v", r, err, p.suites[0].program, all[3])
	}
}

// TestCombineInvalid checks that mutants are built one by one if they do not compile together.
func TestCombineInvalid(t *testing.T) {
	b, p, all := openShapes(t)
	wrong := *all[3].mutant
	wrong.text = "noSuchName"
	combine(t, b, append(all, drawn{p, &wrong}))
	if b.variants != "" || all[3].variant != 0 {
		t.Errorf("%q, %+v", b.variants, all[3])
	}
}

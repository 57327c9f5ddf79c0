# `make book` and `make test` are all that is needed from a fresh clone. PYTHON names the interpreter to start from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: book test install clean notebooks slides student pdf

book: install
	$(BIN)/initmem reproduce sgd-remembers --preset digits --seeds 3 --fresh
	$(BIN)/python book/_ext/notebooks.py --check
	$(BIN)/jupyter-book build . -W -n --keep-going
	@echo; echo "The book is built. Open it: $(CURDIR)/_build/html/index.html"

# Tests that look at the built book spend their time waiting for a browser: they run beside the others.
PAGES := tests/test_book.py tests/test_pages.py tests/test_accessibility.py tests/test_explorer.py tests/test_teaching.py tests/test_publish.py

test: install
	@mkdir -p _build; $(BIN)/python -m pytest -p no:cacheprovider $(PAGES) > _build/pages.log 2>&1 & pages=$$!; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(PAGES)); others=$$?; \
	wait $$pages; seen=$$?; cat _build/pages.log; exit $$((others || seen))

install: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"initmem needs Python 3.11 to 3.13; this is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[train,book,test,pinned]'
	@touch $(READY)

notebooks: install
	$(BIN)/python book/_ext/notebooks.py

slides: install
	$(BIN)/python book/_ext/slides.py

student: install
	$(BIN)/python book/_ext/student.py

pdf: install
	$(BIN)/python book/_ext/pdf.py

clean:
	rm -rf _build

// The selectors of the console match nothing but HTML elements, and dialogs where it opens them.
interface Element {
  focus(options?: FocusOptions): void;
  click(): void;
  showModal(): void;
}

export default class UPlot {
  constructor(options: object, data: unknown[], element: Element);
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
